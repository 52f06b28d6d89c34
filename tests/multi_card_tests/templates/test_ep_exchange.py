"""Dispatch and combine of ep_exchange over real ranks, compared bit by bit with NumPy.

A launcher starts it, one process for each rank; the exit status of every rank counts:

    cd tests/multi_card_tests/templates
    python -m paddle.distributed.launch --gpus 0,1 test_ep_exchange.py
    python -m paddle.distributed.launch --nproc_per_node 2 test_ep_exchange.py

The second form needs no GPU: gloo on the CPU. NCCL refuses two ranks on one device, so a host with
fewer devices than ranks takes gloo as well.
"""

from __future__ import annotations

import os
import unittest
from typing import Any

import numpy as np
import paddle
import paddlefleet_ops

HIDDEN, TOKENS, LOCAL_EXPERTS = 48, 96, 3
# Dtype of the payload, and the integers of its size.
PAYLOADS = {"float32": "int32", "bfloat16": "int16", "float16": "int16"}


def start() -> None:
    """Start the process group, on the devices where each rank has one of its own."""
    ranks = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    devices = paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else 0
    if devices < ranks:
        os.environ["PADDLE_DISTRI_BACKEND"] = "gloo"
        paddle.set_device("cpu")
    paddle.distributed.init_parallel_env()


def payload(rank: int, dtype: str) -> np.ndarray:
    """Any bits, NaN included, that every rank can make for every other: ``[tokens, HIDDEN]``."""
    bits = np.random.default_rng((rank, len(dtype))).bytes(8 * HIDDEN * (TOKENS + rank))
    return np.frombuffer(bits, PAYLOADS[dtype])[: HIDDEN * (TOKENS + rank)].reshape(-1, HIDDEN)


def chosen_experts(rank: int, ranks: int, count: int) -> np.ndarray:
    """``count`` different experts of each token of ``rank``: int64 ``[tokens, count]``."""
    rng = np.random.default_rng((7, rank))
    scores = rng.random((TOKENS + rank, LOCAL_EXPERTS * ranks))
    return np.argsort(scores, axis=1)[:, :count].astype(np.int64)


def of_bits(bits: np.ndarray, dtype: str) -> Any:
    return paddle.to_tensor(bits.copy()).view(dtype)


def to_bits(tensor: Any, dtype: str) -> np.ndarray:
    return np.asarray(tensor.contiguous().view(PAYLOADS[dtype]).numpy())


@unittest.skipUnless(
    paddlefleet_ops.is_ep_exchange_available(),
    paddlefleet_ops.blocked_import_messages.get("paddlefleet_ops.ep_exchange", ""),
)
class TestEpExchange(unittest.TestCase):
    """Every test does all its exchanges before it judges, so that ranks stay in step."""

    library: Any
    rank: int
    ranks: int

    @classmethod
    def setUpClass(cls) -> None:
        from paddlefleet_ops import ep_exchange

        start()
        cls.library = ep_exchange
        cls.rank = paddle.distributed.get_rank()
        cls.ranks = paddle.distributed.get_world_size()

    def buffer(self) -> Any:
        return self.library.Buffer(LOCAL_EXPERTS * self.ranks)

    def dispatched(self, buffer: Any, dtype: str, count: int) -> Any:
        experts = chosen_experts(self.rank, self.ranks, count)
        weights = paddle.ones(list(experts.shape), dtype="float32")
        x = of_bits(payload(self.rank, dtype), dtype)
        return buffer.dispatch(x, paddle.to_tensor(experts), weights)

    def test_there_are_several_ranks(self) -> None:
        assert self.ranks >= 2, "a single rank exchanges nothing: use a launcher"

    def test_what_was_sent_comes_back(self) -> None:
        """With one expert for each token, combine undoes dispatch."""
        came_back = {}
        for dtype in PAYLOADS:
            buffer = self.buffer()
            got = self.dispatched(buffer, dtype, 1)
            # Adding nothing: a token that went to one rank keeps its bits, those of NaN included.
            came_back[dtype] = to_bits(buffer.combine(got.x, got.handle), dtype)
        for dtype, back in came_back.items():
            np.testing.assert_array_equal(back, payload(self.rank, dtype), err_msg=dtype)

    def test_every_rank_gets_the_tokens_of_its_experts(self) -> None:
        received = {
            dtype: to_bits(self.dispatched(self.buffer(), dtype, 2).x, dtype) for dtype in PAYLOADS
        }
        for dtype, got in received.items():
            expected = []
            for source in range(self.ranks):
                experts = chosen_experts(source, self.ranks, 2)
                mine = (experts // LOCAL_EXPERTS == self.rank).any(axis=1)
                expected.append(payload(source, dtype)[mine])
            np.testing.assert_array_equal(got, np.concatenate(expected), err_msg=dtype)

    def test_combine_adds_what_the_ranks_answer(self) -> None:
        """Rank r answers ``3 ** r``: the sum of a token tells which ranks took part, and how often."""
        buffer = self.buffer()
        got = self.dispatched(buffer, "float32", 3)
        answer = np.full((got.x.shape[0], 5), 3.0**self.rank, np.float32)
        out = buffer.combine(paddle.to_tensor(answer), got.handle).numpy()
        owners = chosen_experts(self.rank, self.ranks, 3) // LOCAL_EXPERTS
        sums = [sum(3.0**rank for rank in set(row.tolist())) for row in owners]
        expected = np.repeat(np.array(sums, np.float32)[:, None], 5, axis=1)
        np.testing.assert_array_equal(out, expected)


if __name__ == "__main__":
    unittest.main()
