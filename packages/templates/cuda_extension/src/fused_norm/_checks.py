"""Argument checks that the operators share; each error names the argument and what is accepted."""

from __future__ import annotations

import torch

FLOATING_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_tensor(name: str, tensor: torch.Tensor, min_ndim: int = 1) -> None:
    """Raise TypeError unless `tensor` is a floating tensor, ValueError for too few dimensions."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a tensor, not {type(tensor).__name__}")
    if tensor.dtype not in FLOATING_DTYPES:
        raise TypeError(f"{name} must be float32, float16 or bfloat16, not {tensor.dtype}")
    if tensor.ndim < min_ndim:
        raise ValueError(f"{name} must have at least {min_ndim} dimension(s), not {tensor.ndim}")


def check_same(name: str, tensor: torch.Tensor, model_name: str, model: torch.Tensor) -> None:
    """Raise TypeError unless both have one dtype, ValueError unless they are on one device."""
    check_tensor(name, tensor)
    if tensor.dtype != model.dtype:
        raise TypeError(
            f"{name} must have the dtype of {model_name}, {model.dtype}, not {tensor.dtype}"
        )
    if tensor.device != model.device:
        raise ValueError(
            f"{name} must be on the device of {model_name}, {model.device}, not {tensor.device}"
        )


def check_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless `tensor` has this shape."""
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must have the shape {shape}, not {tuple(tensor.shape)}")


def check_no_gradient(operator: str, *tensors: torch.Tensor) -> None:
    """Raise RuntimeError where a result would silently be cut off from the autograd graph."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise RuntimeError(
            f"{operator} has no backward pass, and an input requires a gradient: call it under "
            "torch.no_grad() (paddle.no_grad()), or pass detached tensors"
        )


def rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view, or else a copy, of shape [rows, last dimension] with adjacent row elements.

    A two-dimensional view whose rows lie apart (one half of a fused projection) is used as it is.
    """
    if tensor.ndim == 2 and (tensor.shape[1] <= 1 or tensor.stride(1) == 1):
        return tensor
    last = tensor.shape[-1]
    rows = 1
    for extent in tensor.shape[:-1]:
        rows *= extent
    return tensor.contiguous().reshape((rows, last))
