"""The recurrence through the scan compiler of ``dsl``: inference on the CPU, without autograd.

This module holds the one lazy import of the package. Everything else is imported eagerly.
"""

from __future__ import annotations

import threading
from types import ModuleType

import torch

from chunk_linear_attention.dsl.kernels import decayed_attention
from chunk_linear_attention.utils.compat import torch_with_device_class
from chunk_linear_attention.utils.inputs import Inputs, prepare

_LOCK = threading.Lock()
_launch: ModuleType | None = None


def compiled_linear_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor | None = None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Causal linear attention by a generated loop over NumPy arrays: no framework call per step.

    Arguments and result are those of
    :func:`chunk_linear_attention.ops.chunk.chunk_linear_attention`. The result carries no gradient.

    Raises:
        ValueError: shapes that do not fit, or tensors that are not on the CPU.
        TypeError: an argument is not a floating-point tensor, or q, k and v differ in type.
        RuntimeError: an argument requires a gradient while gradients are recorded.

    """
    given = [t for t in (q, k, v, g, initial_state) if isinstance(t, torch.Tensor)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in given):
        raise RuntimeError(
            "compiled_linear_attention records no gradient; call it under torch.no_grad(), "
            "or use chunk_linear_attention"
        )
    x = prepare(q, k, v, g, scale, initial_state)
    out, state = _load_launch(type(q.device)).launch(
        decayed_attention.specialise(gated=g is not None),
        _time_major(x),
        carry=x.state,
        device=q.device,
        dtype=x.q.dtype,
    )
    return out.permute(1, 0, 2, 3).to(x.dtype), state if output_final_state else None


def _time_major(x: Inputs) -> dict[str, object]:
    arguments: dict[str, object] = {
        "q": x.q.permute(1, 0, 2, 3),
        "k": x.k.permute(1, 0, 2, 3),
        "v": x.v.permute(1, 0, 2, 3),
        "scale": x.scale,
    }
    if x.g is not None:
        arguments["g"] = x.g.permute(1, 0, 2)
    return arguments


def _load_launch(device_class: type) -> ModuleType:
    """``dsl.launch``, imported when the first kernel is launched.

    Lazy import, one of the exceptions that integration allows:

    - Cause: ``dsl/launch.py`` reflects on ``torch.device`` while it is initialised
      (``functools.singledispatch`` takes the class from an annotation). Paddle's proxy presents
      ``torch.device`` as a module, so at package level the import ends in
      ``TypeError: Invalid annotation ... is not a class``.
    - Trigger: the first call of ``compiled_linear_attention``, and nothing else.
    - Compat context: still needed, because the guard of the package import closed long ago;
      ``torch_with_device_class`` opens one for this module alone, with ``torch.device`` replaced by
      the class of a real device of the framework.
    - State: guard and replacement end with the ``with`` block, also after an error. The module is
      kept for later calls; its ``torch`` is the proxy that was made here, and it imports nothing
      when called, so it means the same outside any guard.
    - Remove when: ``torch.device`` is a class under the proxy. Then import ``launch`` in
      ``dsl/__init__.py``; ``tests/test_lazy_exception.py`` fails on that day and says so.
    """
    global _launch
    with _LOCK:
        if _launch is None:
            with torch_with_device_class("chunk_linear_attention.dsl.launch", device_class):
                from chunk_linear_attention.dsl import launch
            _launch = launch
    return _launch
