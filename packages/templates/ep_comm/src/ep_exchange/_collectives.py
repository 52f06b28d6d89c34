"""The only module that talks to ``torch.distributed``, and the only one that knows its dialects.

``torch.distributed`` and ``paddle.distributed`` (which is what ``torch.distributed`` means under
Paddle's proxy) differ in names and in what their backends can do. What exists is looked up here,
what works is tried once, and the rest of the library sees one operation: ranks exchange rows.

Three transports move the same bytes:

==============  ===================================================  =============================
transport       needs                                                moves, for each rank
==============  ===================================================  =============================
``all_to_all``  ``all_to_all_single`` / ``alltoall_single``          what it sends
``p2p``         ``send`` and ``recv``                                what it sends, pair by pair
``all_gather``  ``all_gather``                                       world size x the largest send
==============  ===================================================  =============================

``auto`` takes the first that works, in this order. Whether ``all_to_all`` works is found out by
sending one byte, and the ranks agree on the answer. Point-to-point cannot be tried so: where it
doesn't work it waits for its timeout. So ``auto`` leaves it out where messages are numbered over
the whole group (see `numbers_messages_by_group`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ep_exchange._bytes import from_bytes, row_bytes, to_bytes

TRANSPORTS = ("auto", "all_to_all", "p2p", "all_gather")


def group_rank_and_size(group: Any = None) -> tuple[int, int]:
    """Return this process's rank in `group` and the number of ranks.

    One process without a process group is a group of one: Paddle's ``init_parallel_env`` makes none then.

    Raises:
        RuntimeError: the process group isn't initialised, or this process isn't in `group`.

    """
    if not dist.is_initialized():
        if group is None and _declared_world_size() == 1:
            return 0, 1
        raise RuntimeError(
            "ep_exchange needs a process group and there is none yet; "
            "call torch.distributed.init_process_group(...) "
            "or paddle.distributed.init_parallel_env() first"
        )
    rank, size = int(dist.get_rank(group)), int(dist.get_world_size(group))
    if rank < 0:
        # Paddle gives rank -1 to the only member of a group of one as well.
        if list(getattr(group, "ranks", [])) == [int(dist.get_rank())]:
            return 0, 1
        raise RuntimeError(
            "this process is not a member of the group; "
            "make a Buffer only on the ranks that were passed to new_group(...)"
        )
    return rank, size


def _declared_world_size() -> int:
    """Return the world size that the framework reports before initialisation; 0 if it reports none."""
    try:
        return int(dist.get_world_size())
    except (RuntimeError, ValueError):
        # torch: "Default process group has not been initialized". Whoever uses PyTorch on a single
        # process initialises a group of one.
        return 0


def global_ranks(group: Any, size: int) -> list[int]:
    """Return the global rank of each rank of `group`: ``send`` and ``recv`` take global ranks."""
    if group is None:
        return list(range(size))
    if hasattr(dist, "get_process_group_ranks"):
        return [int(rank) for rank in dist.get_process_group_ranks(group)]
    return [int(rank) for rank in group.ranks]


def all_to_all_function() -> Any:
    """Return ``f(out, rows, out_splits, in_splits, group)``, or None if the framework has none."""
    if hasattr(dist, "all_to_all_single"):
        return dist.all_to_all_single
    if not hasattr(dist, "alltoall_single"):
        return None

    def paddle_order(out: Any, rows: Any, out_splits: Any, in_splits: Any, group: Any) -> Any:
        # By name: the two split lists change places between paddle.distributed and its .stream.
        return dist.alltoall_single(
            out_tensor=out,
            in_tensor=rows,
            in_split_sizes=in_splits,
            out_split_sizes=out_splits,
            group=group,
        )

    return paddle_order


def numbers_messages_by_group(group: Any = None) -> bool:
    """Say whether a message is matched by a count of all operations that a rank did in the group.

    Paddle's gloo (3.3.1) does so: a send and its receive meet only if both ranks did equally many
    operations before. That holds when all ranks are paired in every round, so only in groups of an
    even size; a message that misses its count waits 30 s and fails. torch's gloo and NCCL match by
    pair. The family is told by the name of the all-to-all function, the backend by its own name.
    """
    paddle_names = hasattr(dist, "alltoall_single") and not hasattr(dist, "get_process_group_ranks")
    return paddle_names and str(dist.get_backend(group)).lower() == "gloo"


def partner(rank: int, size: int, turn: int) -> int | None:
    """Return whom `rank` meets in a round-robin tournament, or None if it rests in this turn.

    The circle method: ``size - 1`` turns for an even size, ``size`` turns for an odd one; every pair
    meets once, and nobody meets two others in one turn.
    """
    even = size + size % 2
    odd = even - 1
    if rank == odd:
        return turn * (even // 2) % odd
    other = (turn - rank) % odd
    if other == rank:
        other = odd
    return other if other < size else None


class Exchange:
    """A group of ranks and the transport by which they exchange rows.

    Args:
        group: process group; None is the default group.
        transport: one of `TRANSPORTS`. All ranks must ask for the same.

    Raises:
        ValueError: unknown transport.
        RuntimeError: no process group, or this process isn't in it.

    """

    def __init__(self, group: Any = None, transport: str = "auto") -> None:
        if transport not in TRANSPORTS:
            choices = ", ".join(TRANSPORTS)
            raise ValueError(f"transport {transport!r} is unknown; choose one of: {choices}")
        self.group = group
        self.rank, self.world_size = group_rank_and_size(group)
        self._asked = transport
        self._chosen: str | None = "local" if self.world_size == 1 else None

    @property
    def transport(self) -> str:
        """The transport in use: ``local`` for one rank; ``auto`` until the first exchange."""
        return self._chosen or self._asked

    def gather_integers(self, values: Sequence[int], device: Any) -> list[list[int]]:
        """Return the integers of every rank, by rank. All ranks pass equally many, at least one."""
        if self.world_size == 1:
            return [list(values)]
        mine = torch.tensor(list(values), dtype=torch.int64, device=device)
        parts = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(parts, mine, group=self.group)
        return [[int(value) for value in part.tolist()] for part in parts]

    def all_to_all_v(
        self, rows: torch.Tensor, send_counts: Sequence[int]
    ) -> tuple[torch.Tensor, list[int]]:
        """Send rows to every rank and receive theirs; every rank of the group must call it.

        Args:
            rows: ``[sum(send_counts), width]`` of any dtype: the rows for rank 0, for rank 1, ...
            send_counts: how many rows each rank gets.

        Returns:
            The received rows ``[n, width]``, by source rank and in the order in which they were
            sent, and how many came from each rank.

        Raises:
            ValueError: these arguments don't fit together.
            RuntimeError: another rank's don't, or the ranks' row sizes differ.

        """
        problem = self._misfit(rows, send_counts)
        size = 0 if problem else row_bytes(int(rows.shape[1]), rows.dtype)
        counts = [0] * self.world_size if problem else [int(count) for count in send_counts]
        table = self.gather_integers([int(not problem), size, *counts], rows.device)
        if problem:
            raise ValueError(problem)
        refuse_if_another_failed("all_to_all_v", [line[0] for line in table])
        refuse_if_different("bytes in a row", [line[1] for line in table])
        matrix = [line[2:] for line in table]
        moved = self.move_bytes(to_bytes(rows), matrix)
        return from_bytes(moved, rows.dtype), [line[self.rank] for line in matrix]

    def _misfit(self, rows: torch.Tensor, send_counts: Sequence[int]) -> str:
        if rows.dim() != 2 or rows.shape[1] == 0:
            return f"rows must be [n, width] with a width of at least 1, got {list(rows.shape)}"
        if len(send_counts) != self.world_size or any(count < 0 for count in send_counts):
            return (
                f"send_counts must be {self.world_size} numbers of rows, one for each rank, "
                f"got {list(send_counts)}"
            )
        if sum(send_counts) != rows.shape[0]:
            return f"send_counts add up to {sum(send_counts)}, but there are {rows.shape[0]} rows"
        return ""

    def move_bytes(self, rows: torch.Tensor, matrix: Sequence[Sequence[int]]) -> torch.Tensor:
        """Move uint8 ``[n, width]``; ``matrix[source][destination]`` rows, known to all ranks."""
        transport = self._choose(rows.device)
        if transport == "local":
            return rows
        width = int(rows.shape[1])
        flat = rows.contiguous().reshape([-1])
        in_bytes = [[count * width for count in line] for line in matrix]
        if transport == "all_to_all":
            out = self._by_all_to_all(flat, in_bytes)
        elif transport == "p2p":
            out = self._by_p2p(flat, in_bytes)
        else:
            out = self._by_all_gather(flat, in_bytes)
        return out.reshape([sum(line[self.rank] for line in matrix), width])

    # Choosing

    def _choose(self, device: Any) -> str:
        if self._chosen is None:
            chosen = self._first_that_works(device) if self._asked == "auto" else self._asked
            self._check_choice(chosen)
            self._chosen = chosen
        return self._chosen

    def _check_choice(self, transport: str) -> None:
        if transport == "all_to_all" and all_to_all_function() is None:
            raise RuntimeError(
                "this framework has no all-to-all function; use the transport 'auto' or 'all_gather'"
            )
        if transport == "p2p" and self.world_size % 2 and numbers_messages_by_group(self.group):
            raise ValueError(
                f"the transport 'p2p' cannot serve {self.world_size} ranks on this backend, which "
                "numbers messages over the whole group and so needs an even number of ranks; "
                "use the transport 'auto' or 'all_gather'"
            )

    def _first_that_works(self, device: Any) -> str:
        # Two questions: a rank that lacks the function must not leave the others waiting in it.
        there = self._all_agree(all_to_all_function() is not None, device)
        if there and self._all_agree(self._one_byte_gets_through(device), device):
            return "all_to_all"
        return "all_gather" if numbers_messages_by_group(self.group) else "p2p"

    def _all_agree(self, answer: bool, device: Any) -> bool:
        return all(line[0] for line in self.gather_integers([int(answer)], device))

    def _one_byte_gets_through(self, device: Any) -> bool:
        sent = torch.full([self.world_size], self.rank, dtype=torch.uint8, device=device)
        try:
            out = self._by_all_to_all(sent, [[1] * self.world_size] * self.world_size)
        except (NotImplementedError, RuntimeError):
            # Backends refuse what they lack at once, before they send: torch with a RuntimeError,
            # Paddle with a NotImplementedError. A broken network shows in the agreement that follows.
            return False
        return [int(value) for value in out.tolist()] == list(range(self.world_size))

    # Transports: `flat` is uint8 [n], `matrix` is in bytes

    def _by_all_to_all(self, flat: torch.Tensor, matrix: list[list[int]]) -> torch.Tensor:
        received = [line[self.rank] for line in matrix]
        out = torch.empty([sum(received)], dtype=torch.uint8, device=flat.device)
        all_to_all_function()(out, flat, received, matrix[self.rank], self.group)
        return out

    def _by_p2p(self, flat: torch.Tensor, matrix: list[list[int]]) -> torch.Tensor:
        ranks = global_ranks(self.group, self.world_size)
        mine = _split(flat, matrix[self.rank])
        parts = [mine[self.rank]] * self.world_size
        padding = torch.zeros([1], dtype=torch.uint8, device=flat.device)
        even = self.world_size + self.world_size % 2
        for turn in range(even - 1):
            peer = partner(self.rank, self.world_size, turn)
            if peer is None:
                continue
            length = matrix[peer][self.rank]
            # Never an empty message: both sides must do the same operations in each turn.
            landing = torch.empty([max(length, 1)], dtype=torch.uint8, device=flat.device)
            message = mine[peer] if mine[peer].shape[0] else padding
            if self.rank < peer:
                dist.send(message, ranks[peer], group=self.group)
                dist.recv(landing, ranks[peer], group=self.group)
            else:
                dist.recv(landing, ranks[peer], group=self.group)
                dist.send(message, ranks[peer], group=self.group)
            parts[peer] = landing[:length]
        return torch.cat(parts, dim=0)

    def _by_all_gather(self, flat: torch.Tensor, matrix: list[list[int]]) -> torch.Tensor:
        # At least one byte: Paddle's gloo dies of a division by zero at an empty all_gather.
        room = max(1, *(sum(line) for line in matrix))
        padded = torch.zeros([room], dtype=torch.uint8, device=flat.device)
        if flat.shape[0]:
            padded[: flat.shape[0]] = flat
        gathered = [torch.empty_like(padded) for _ in range(self.world_size)]
        dist.all_gather(gathered, padded, group=self.group)
        parts = []
        for source, part in enumerate(gathered):
            start = sum(matrix[source][: self.rank])
            parts.append(part[start : start + matrix[source][self.rank]])
        return torch.cat(parts, dim=0)


def _split(flat: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
    parts, start = [], 0
    for length in lengths:
        parts.append(flat[start : start + length])
        start += length
    return parts


def refuse_if_another_failed(operation: str, answers: Sequence[int]) -> None:
    """Raise on the ranks that are well if one isn't, so that none waits for it."""
    failed = [rank for rank, answer in enumerate(answers) if not answer]
    if failed:
        names = ", ".join(map(str, failed))
        raise RuntimeError(
            f"{operation}: rank {names} of the group refused its arguments, so nothing was sent; "
            "see the error of that rank"
        )


def refuse_if_different(what: str, values: Sequence[int] | Sequence[str]) -> None:
    """Raise if the ranks didn't pass the same."""
    if len(set(values)) > 1:
        raise RuntimeError(
            f"the ranks differ in {what}, so nothing was sent: "
            + ", ".join(f"rank {rank} has {value}" for rank, value in enumerate(values))
        )


def all_to_all_v(
    rows: torch.Tensor, send_counts: Sequence[int], group: Any = None, transport: str = "auto"
) -> tuple[torch.Tensor, list[int]]:
    """Exchange rows once; see `Exchange.all_to_all_v`. Keep an `Exchange` to choose the transport once."""
    return Exchange(group, transport).all_to_all_v(rows, send_counts)
