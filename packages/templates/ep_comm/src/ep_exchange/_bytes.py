"""Rows as bytes: the exchange moves ``uint8``, so no dtype and no bit pattern can change on its way.

Backends differ in the dtypes that they take (Paddle 3.3.1's gloo ends the process at an ``int16``
with "Unknown DataType"), and every backend takes ``uint8``.
"""

from __future__ import annotations

import torch


def row_bytes(width: int, dtype: torch.dtype) -> int:
    """Return the size in bytes of a row of `width` elements."""
    return width * int(torch.empty([1], dtype=dtype).element_size())


def to_bytes(rows: torch.Tensor) -> torch.Tensor:
    """Return the memory of ``[n, width]`` as uint8 ``[n, width * element size]``."""
    if rows.dtype == torch.uint8:
        return rows
    # Paddle 3.3.1 refuses to view an empty tensor as another dtype.
    if rows.shape[0] == 0:
        size = [0, row_bytes(rows.shape[1], rows.dtype)]
        return torch.empty(size, dtype=torch.uint8, device=rows.device)
    return rows.contiguous().view(torch.uint8)


def from_bytes(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return uint8 ``[n, bytes]`` as ``[n, bytes / element size]`` of `dtype`; undoes `to_bytes`."""
    if dtype == torch.uint8:
        return rows
    if rows.shape[0] == 0:
        width = rows.shape[1] // row_bytes(1, dtype)
        return torch.empty([0, width], dtype=dtype, device=rows.device)
    # A slice of columns may start at an address that the dtype does not allow: copy it first.
    return rows.contiguous().clone().view(dtype)


def pack(columns: list[torch.Tensor]) -> torch.Tensor:
    """Join tensors ``[n, width_i]`` of any dtypes into uint8 ``[n, sum of their row bytes]``."""
    return torch.cat([to_bytes(column) for column in columns], dim=1)


def unpack(rows: torch.Tensor, layout: list[tuple[int, torch.dtype]]) -> list[torch.Tensor]:
    """Split what `pack` joined; `layout` has the width and the dtype of each part, in order."""
    parts, start = [], 0
    for width, dtype in layout:
        end = start + row_bytes(width, dtype)
        parts.append(from_bytes(rows[:, start:end], dtype))
        start = end
    return parts
