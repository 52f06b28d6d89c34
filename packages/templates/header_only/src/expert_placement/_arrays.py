"""Tensors to NumPy arrays and back: the only place that touches both."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_INTEGERS = (torch.int32, torch.int64)
_NUMBERS = (torch.float32, torch.float64, *_INTEGERS)


def indices(tensor: torch.Tensor, name: str, ndims: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """A contiguous int64 array with the values of an int32 or int64 CPU tensor."""
    return _array(tensor, name, ndims, _INTEGERS).astype(np.int64, order="C", copy=False)


def loads(tensor: torch.Tensor, name: str, ndims: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """A contiguous float64 array with the values of a float or integer CPU tensor."""
    return _array(tensor, name, ndims, _NUMBERS).astype(np.float64, order="C", copy=False)


def tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """A CPU tensor of the framework with the dtype and shape of ``array``."""
    return torch.from_numpy(np.asarray(array, order="C"))  # ascontiguousarray would lift 0-d to 1-d


def _array(
    value: torch.Tensor, name: str, ndims: tuple[int, ...], dtypes: tuple[torch.dtype, ...]
) -> npt.NDArray[Any]:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a tensor; found {type(value).__name__}")
    if value.device.type != "cpu":
        raise ValueError(
            f"{name} is on {value.device}; placement runs on the CPU: pass {name}.cpu()"
        )
    if value.dtype not in dtypes:
        wanted = ", ".join(str(dtype).rpartition(".")[2] for dtype in dtypes)
        raise TypeError(f"{name} has dtype {value.dtype}; convert it to one of: {wanted}")
    if value.ndim not in ndims:
        wanted = " or ".join(str(n) for n in ndims)
        raise ValueError(f"{name} must have {wanted} dimensions; found shape {list(value.shape)}")
    array: npt.NDArray[Any] = value.detach().numpy()
    return array
