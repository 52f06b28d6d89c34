"""Dispatch and combine: tokens to the ranks of their experts, and results back."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ep_exchange import _bytes
from ep_exchange._collectives import (
    TRANSPORTS,
    Exchange,
    refuse_if_another_failed,
    refuse_if_different,
)
from ep_exchange._reduce import add_in_rank_order
from ep_exchange._routing import Route, count_per_expert, plan_route, to_local_experts


@dataclass(frozen=True)
class Handle:
    """What `Buffer.combine` must know of a dispatch. It may be used more than once.

    serial: number of the dispatch; the same on all ranks.
    route: where this rank's tokens went.
    counts: ``counts[source][destination]`` tokens, for all ranks.
    rank: this rank.
    tokens_per_expert: for each local expert, how many received places name it.
    """

    serial: int
    route: Route
    counts: tuple[tuple[int, ...], ...]
    rank: int
    tokens_per_expert: tuple[int, ...]

    @property
    def sent_per_rank(self) -> list[int]:
        """How many tokens went to each rank."""
        return list(self.counts[self.rank])

    @property
    def received_per_rank(self) -> list[int]:
        """How many tokens came from each rank."""
        return [line[self.rank] for line in self.counts]


class Dispatched(NamedTuple):
    """What one rank received: by source rank, and in the order of the source's tokens.

    x: ``[received, hidden]``, the dtype and the bits that were sent.
    topk_idx: ``[received, k]``, numbers of this rank's experts from 0; -1 for experts elsewhere.
    topk_weights: ``[received, k]``; 0 for experts elsewhere.
    handle: for `Buffer.combine`.
    """

    x: torch.Tensor
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor
    handle: Handle


class Buffer:
    """Token exchange for `num_experts` experts, divided evenly over the ranks of a group.

    Args:
        num_experts: all experts of the layer; rank ``r`` has the next ``num_experts / world_size``.
        group: process group; None is the default group.
        transport: one of `ep_exchange.TRANSPORTS`; the same on all ranks.

    Raises:
        ValueError: `num_experts` can't be divided evenly, or the transport is unknown.
        RuntimeError: there is no process group, or this process isn't in it.

    """

    def __init__(self, num_experts: int, group: Any = None, *, transport: str = "auto") -> None:
        self._exchange = Exchange(group, transport)
        self._asked = transport
        if num_experts < 1 or num_experts % self.world_size:
            least = max(1, -(-num_experts // self.world_size)) * self.world_size
            raise ValueError(
                f"{num_experts} experts cannot be divided evenly over {self.world_size} ranks; "
                f"use a multiple of {self.world_size} (such as {least}) or another group"
            )
        self.num_experts = num_experts
        self.num_local_experts = num_experts // self.world_size
        self._serial = 0

    @property
    def rank(self) -> int:
        """Rank of this process in the group."""
        return self._exchange.rank

    @property
    def world_size(self) -> int:
        """Number of ranks in the group."""
        return self._exchange.world_size

    @property
    def transport(self) -> str:
        """The transport in use: ``local`` for one rank; ``auto`` until the first exchange."""
        return self._exchange.transport

    def dispatch(
        self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor
    ) -> Dispatched:
        """Send each token once to every rank that has at least one of its experts.

        Every rank of the group must call it. The numbers of tokens may differ, and may be 0.

        Args:
            x: ``[tokens, hidden]``, any dtype.
            topk_idx: ``[tokens, k]`` int32 or int64, global expert numbers; -1 is an unused place.
            topk_weights: ``[tokens, k]``, a floating dtype.

        Raises:
            ValueError: wrong shape, dtype, device or expert number, or an input that requires a
                gradient (there is no backward pass).
            RuntimeError: another rank refused its input, or the ranks differ in what they pass.
                Nothing was sent then, and all ranks can go on.

        """
        problem = self._misfit(x, topk_idx, topk_weights)
        with torch.no_grad():
            if problem:
                self._agree("dispatch", problem, [0] * 6, [0] * self.world_size, x.device)
            route = plan_route(topk_idx, self.num_local_experts, self.world_size)
            facts = [
                self.num_experts,
                int(x.shape[1]),
                int(topk_idx.shape[1]),
                _code(x.dtype, topk_idx.dtype, topk_weights.dtype),
                self._serial,
                TRANSPORTS.index(self._asked),
            ]
            matrix = self._agree("dispatch", "", facts, route.counts, x.device)
            rows = _bytes.pack([x, topk_idx, topk_weights])
            moved = self._exchange.move_bytes(rows[torch.cat(list(route.tokens), dim=0)], matrix)
            k = int(topk_idx.shape[1])
            layout = [(int(x.shape[1]), x.dtype), (k, topk_idx.dtype), (k, topk_weights.dtype)]
            out, idx, weights = _bytes.unpack(moved, layout)
            idx, weights = to_local_experts(idx, weights, self.num_local_experts, self.rank)
        per_expert = count_per_expert(idx, self.num_local_experts)
        counts = tuple(tuple(line) for line in matrix)
        handle = Handle(self._serial, route, counts, self.rank, tuple(per_expert))
        self._serial += 1
        return Dispatched(out, idx, weights, handle)

    def combine(self, y: torch.Tensor, handle: Handle) -> torch.Tensor:
        """Bring the experts' results back and sum them per token, in the order of the ranks.

        Every rank of the group must call it, with the handle of the same dispatch. `y` is a rank's
        own sum over its experts, already weighted; the weights are not applied here.

        Args:
            y: ``[received, hidden]``, float16, bfloat16, float32 or float64; `hidden` and the dtype
                need not be those of the dispatch.
            handle: what `dispatch` returned.

        Returns:
            ``[tokens, hidden]`` of the dtype of `y`; see `ep_exchange.add_in_rank_order` for the
            rounding. The same input gives the same bits, whatever the transport.

        Raises:
            ValueError: wrong shape or dtype, or an input that requires a gradient.
            RuntimeError: another rank refused its input, or the ranks differ in what they pass.

        """
        problem = self._combine_misfit(y, handle)
        with torch.no_grad():
            facts = [0, 0, 0] if problem else [handle.serial, int(y.shape[1]), _code(y.dtype)]
            self._agree("combine", problem, [*facts, 0, 0, 0], [0] * self.world_size, y.device)
            back = [list(column) for column in zip(*handle.counts, strict=True)]
            rows = _bytes.from_bytes(self._exchange.move_bytes(_bytes.to_bytes(y), back), y.dtype)
            return add_in_rank_order(rows, handle.route)

    def _agree(
        self, operation: str, problem: str, facts: list[int], counts: list[int], device: Any
    ) -> list[list[int]]:
        """Let all ranks see each other's header; return the matrix of counts, or raise on all."""
        kind = list(_FACTS).index(operation)
        table = self._exchange.gather_integers([int(not problem), kind, *facts, *counts], device)
        if problem:
            raise ValueError(f"{operation}: {problem}")
        refuse_if_another_failed(operation, [line[0] for line in table])
        called = [list(_FACTS)[line[1]] for line in table]
        refuse_if_different("the operation that they call", called)
        for place, what in enumerate(_FACTS[operation]):
            refuse_if_different(f"{operation}: {what}", [line[2 + place] for line in table])
        return [line[2 + len(facts) :] for line in table]

    def _misfit(self, x: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor) -> str:
        if x.dim() != 2 or x.shape[1] == 0:
            return f"x must be [tokens, hidden] with hidden of at least 1, got {list(x.shape)}"
        if idx.dim() != 2 or idx.shape[0] != x.shape[0] or idx.shape[1] == 0:
            return f"topk_idx must be [{x.shape[0]}, k] with k of at least 1, got {list(idx.shape)}"
        if list(weights.shape) != list(idx.shape):
            return f"topk_weights must be {list(idx.shape)}, as topk_idx, got {list(weights.shape)}"
        if idx.dtype not in (torch.int32, torch.int64):
            return f"topk_idx must be int32 or int64, got {idx.dtype}"
        if not weights.is_floating_point():
            return f"topk_weights must have a floating dtype, got {weights.dtype}"
        if not (x.device == idx.device == weights.device):
            return (
                f"the inputs lie on different devices: {x.device}, {idx.device}, {weights.device}"
            )
        if _wants_gradient(x) or _wants_gradient(weights):
            return _NO_BACKWARD
        if idx.shape[0] and not self._are_experts(idx):
            return (
                f"topk_idx has expert numbers from {int(idx.min())} to {int(idx.max())}; they must "
                f"be from 0 to {self.num_experts - 1}, or -1 for an unused place"
            )
        return ""

    def _are_experts(self, idx: torch.Tensor) -> bool:
        return int(idx.min()) >= -1 and int(idx.max()) < self.num_experts

    def _combine_misfit(self, y: torch.Tensor, handle: Handle) -> str:
        received = sum(handle.received_per_rank)
        if y.dim() != 2 or y.shape[0] != received or y.shape[1] == 0:
            return f"y must be [{received}, hidden], one row for each received token, got {list(y.shape)}"
        if y.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            return f"y must be float16, bfloat16, float32 or float64, got {y.dtype}"
        return _NO_BACKWARD if _wants_gradient(y) else ""


_NO_BACKWARD = (
    "an input requires a gradient and there is no backward pass; turn gradients off around the call "
    "(torch.no_grad(), paddle.no_grad()), or wrap it: the backward of dispatch is combine, and the "
    "backward of combine is dispatch"
)
_FACTS = {
    "dispatch": (
        "num_experts",
        "hidden size",
        "k",
        "dtypes (a checksum of their names)",
        "number of dispatches so far",
        "transport",
    ),
    "combine": (
        "the dispatch that the handle is from",
        "hidden size",
        "dtype (a checksum of its name)",
    ),
}


def _wants_gradient(tensor: torch.Tensor) -> bool:
    return bool(tensor.requires_grad) and bool(torch.is_grad_enabled())


def _code(*dtypes: torch.dtype) -> int:
    """Return a number for dtypes that is the same on all ranks: a checksum of their names."""
    return zlib.crc32(",".join(str(dtype).rpartition(".")[2] for dtype in dtypes).encode())
