"""Which framework ``torch`` is here, and the bridge for a module that reflects on its types."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def is_proxied() -> bool:
    """Whether ``torch`` in this package is Paddle behind its proxy."""
    return type(torch).__module__.partition(".")[0] == "paddle"


@contextmanager
def torch_with_device_class(module: str, device_class: type) -> Iterator[None]:
    """A compat context for importing ``module``, in which ``torch.device`` is ``device_class``.

    Does nothing under PyTorch. Under Paddle it opens ``use_compat_guard`` for ``module`` alone
    and overrides one name of the proxy; both are undone on exit, whether the import worked or not.
    A proxy that is created meanwhile keeps the override, and belongs to ``module`` only: the guard
    removes it from ``sys.modules``.

    The proxy and its table of overrides are global to the process: do not run it in two threads.
    """
    if not is_proxied():
        yield
        return
    paddle: Any = importlib.import_module("paddle")
    proxy: Any = importlib.import_module("paddle.compat.proxy")
    overrides: dict[str, Any] = proxy.GLOBAL_OVERRIDES
    before = {key: overrides[key] for key in ("torch.device",) if key in overrides}
    overrides["torch.device"] = proxy.RawOverriddenAttribute(device_class)
    try:
        with paddle.use_compat_guard(scope={module}, silent=True):
            yield
    finally:
        del overrides["torch.device"]
        overrides.update(before)
