"""The arguments of every operator: checked once, brought to the type that is computed in."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, torch.float64, *_HALVES)


@dataclass(frozen=True)
class Inputs:
    """Checked arguments, in the computing type (float64 for float64, else float32).

    ``q``, ``k``: ``[B, T, H, K]``. ``v``: ``[B, T, H, V]``. ``g``: ``[B, T, H]`` or None.
    ``state``: ``[B, H, K, V]``. ``dtype``: the type of the result, that of ``v``.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor | None
    state: torch.Tensor
    scale: float
    dtype: torch.dtype


def prepare(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor | None,
    scale: float | None,
    initial_state: torch.Tensor | None,
) -> Inputs:
    """Checks shapes and types, and fills in the scale (``K ** -0.5``) and the state (zeros).

    Raises:
        ValueError: a shape does not fit the others; the message names the argument and both shapes.
        TypeError: an argument is not a floating-point tensor, or q, k and v differ in type.

    """
    _check_types(q, k, v, g, initial_state)
    if q.ndim != 4 or 0 in q.shape:
        raise ValueError(f"q must be [B, T, H, K] without empty dimensions; found {list(q.shape)}")
    batch, steps, heads, keys = q.shape
    _check_shape("k", k, [batch, steps, heads, keys])
    values = v.shape[-1] if v.ndim == 4 else 0
    _check_shape("v", v, [batch, steps, heads, max(1, values)])
    work = torch.float64 if q.dtype == torch.float64 else torch.float32
    if g is not None:
        _check_shape("g", g, [batch, steps, heads])
        g = g.to(work)
    if initial_state is None:
        state = torch.zeros(batch, heads, keys, values, dtype=work, device=q.device)
    else:
        _check_shape("initial_state", initial_state, [batch, heads, keys, values])
        state = initial_state.to(work)
    scale = keys**-0.5 if scale is None else scale
    return Inputs(q.to(work), k.to(work), v.to(work), g, state, scale, v.dtype)


def _check_types(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: object) -> None:
    named = zip(("q", "k", "v", "g", "initial_state"), (q, k, v, *others), strict=True)
    for name, value in named:
        if value is None:
            continue
        if not isinstance(value, torch.Tensor) or value.dtype not in _FLOATS:
            found = getattr(value, "dtype", type(value).__name__)
            raise TypeError(f"{name} must be a floating-point tensor; found {found}")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q, k and v must have one type; found {q.dtype}, {k.dtype}, {v.dtype}")


def _check_shape(name: str, value: torch.Tensor, expected: list[int]) -> None:
    if list(value.shape) != expected:
        raise ValueError(f"{name} must have the shape {expected}; found {list(value.shape)}")
