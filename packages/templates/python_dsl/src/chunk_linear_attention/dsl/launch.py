"""The front end of the scan language for torch: framework values in, framework tensors out.

Do not import this module at package level: it reflects on ``torch.device`` while it is initialised,
which fails under Paddle's proxy. It stands for the torch front end of a DSL that you do not own
(the case met in practice is ``cutlass.torch``), and is therefore left as such a project writes it.
In a module of your own, take the class from a device (``type(tensor.device)``) and import eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any

import numpy as np
import torch


@singledispatch
def lower(value: object) -> Any:
    """What a kernel sees in place of a framework value; the class decides, by annotation."""
    raise TypeError(f"a kernel cannot take a {type(value).__name__}")


@lower.register
def _(value: torch.Tensor) -> Any:
    return np.ascontiguousarray(value.detach().numpy())


@lower.register
def _(value: torch.dtype) -> Any:
    return np.dtype(str(value).rpartition(".")[2])


@lower.register
def _(value: torch.device) -> Any:
    if value.type != "cpu":
        raise ValueError(f"scan kernels run on the CPU; found {value}: pass tensor.cpu()")
    return value.type


@lower.register
def _(value: float) -> Any:
    return value


def launch(
    kernel: Callable[..., None],
    arguments: Mapping[str, object],
    *,
    carry: torch.Tensor,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs a compiled decayed scan over time-major arguments.

    ``arguments`` has ``v`` (``[T, ..., V]``) among its entries, which gives the output its shape;
    ``carry`` is ``[..., K, V]`` and stays as it is. Returns the output
    (``[T, ..., V]``) and the last carry.

    Raises:
        ValueError: the device is not the CPU.
        TypeError: an argument is no tensor and no number.

    """
    lower(device)
    lowered = {name: lower(value) for name, value in arguments.items()}
    state = np.array(lower(carry), copy=True)
    out = np.empty(lowered["v"].shape, dtype=lower(dtype))
    kernel(out, state=state, **lowered)
    return torch.from_numpy(out), torch.from_numpy(state)
