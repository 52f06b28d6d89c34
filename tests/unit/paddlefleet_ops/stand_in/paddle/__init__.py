"""A stand-in for Paddle: just enough for the loader, and it writes down what was asked of it.

``use_compat_guard`` lets modules of its scope import ``torch`` while it is open, as Paddle's does, by
a finder at the head of ``sys.meta_path``. ``events`` holds what happened, in order.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

__version__ = "stand-in"
events: list[dict[str, object]] = []


class ProxyModule(ModuleType):
    """What an importer within the scope gets for ``torch``."""


class TorchProxyMetaFinder:
    """Finds ``torch`` for importers whose top-level package is in ``scope``."""

    def __init__(self, scope: set[str]) -> None:
        self.scope = scope

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "torch" or not self._called_from_scope():
            return None
        return importlib.util.spec_from_loader(fullname, self)

    def _called_from_scope(self) -> bool:
        frame = sys._getframe()
        while frame is not None:
            if str(frame.f_globals.get("__name__")).partition(".")[0] in self.scope:
                return True
            frame = frame.f_back
        return False

    def create_module(self, spec):
        return ProxyModule("torch")

    def exec_module(self, module):
        module.add = lambda left, right: left + right


@contextmanager
def use_compat_guard(
    *, enable: bool = True, scope: Iterable[str] | None = None, silent: bool = False
) -> Iterator[None]:
    events.append({"open": sorted(scope), "silent": silent, "path": list(sys.path)})
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name == "torch"}
    finder = TorchProxyMetaFinder(set(scope))
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.modules.pop("torch", None)
        sys.modules.update(hidden)
        events.append({"close": sorted(scope)})


def enable_compat() -> None:
    """As in Paddle, it stays on until somebody switches it off."""
    sys.meta_path.insert(0, TorchProxyMetaFinder(set()))


class _Cuda:
    """``STAND_IN_CAPABILITY``: ``9.0``, empty for no device, ``broken`` for a driver that fails."""

    def device_count(self) -> int:
        events.append({"asked": "device_count"})
        return 1 if os.environ.get("STAND_IN_CAPABILITY") else 0

    def get_device_capability(self) -> tuple[int, int]:
        events.append({"asked": "capability"})
        value = os.environ["STAND_IN_CAPABILITY"]
        if value == "broken":
            raise OSError("(External) CUDA error(35)\n  driver version is insufficient")
        major, minor = value.split(".")
        return int(major), int(minor)


version = SimpleNamespace(cuda=lambda: os.environ.get("STAND_IN_CUDA", "False"))
device = SimpleNamespace(cuda=_Cuda())
