"""Round trip on real ranks; started by a launcher, one process per rank:

    python -m paddle.distributed.launch --nproc_per_node=2 tests/multi_card/check_round_trip.py
    torchrun --nproc-per-node=2 tests/multi_card/check_round_trip.py

NCCL where each rank of the host has a CUDA device of its own, gloo elsewhere (NCCL refuses two ranks
on one device); what it was is in every line. Every rank checks its own result bit by bit, says
what it saw, and exits with 1 if anything is wrong; only exit status 0 of all ranks is success.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType
from typing import Any

import numpy as np

HIDDEN, K, LOCAL_EXPERTS = 256, 4, 4
DTYPES = ("float32", "bfloat16", "float16")
SIGNED = {2: "int16", 4: "int32", 8: "int64"}


def a_device_each(devices: int) -> bool:
    """Whether the ``devices`` of this host are enough for its ranks; says so where they are not."""
    local = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("PADDLE_LOCAL_SIZE")
    ranks = int(local or os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    if 0 < devices < ranks:
        print(f"{ranks} ranks share {devices} CUDA device(s): gloo on the CPU, NCCL is not checked")
    return devices >= ranks


def start_paddle() -> tuple[Any, ModuleType, str]:
    """Return the framework, the library and the device, with the group started."""
    paddle = importlib.import_module("paddle")
    with_cuda = paddle.is_compiled_with_cuda()
    on_gpu = with_cuda and a_device_each(paddle.device.cuda.device_count())
    if not on_gpu:
        os.environ["PADDLE_DISTRI_BACKEND"] = "gloo"
        paddle.set_device("cpu")
    paddle.distributed.init_parallel_env()
    with paddle.use_compat_guard(scope={"ep_exchange"}, silent=True):
        library = importlib.import_module("ep_exchange")
    return paddle, library, "gpu" if on_gpu else "cpu"


def start_torch() -> tuple[Any, ModuleType, str]:
    """Return the framework, the library and the device, with the group started."""
    torch = importlib.import_module("torch")
    on_gpu = a_device_each(torch.cuda.device_count())
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
    return torch, importlib.import_module("ep_exchange"), "cuda" if on_gpu else "cpu"


class Check:
    """The round trip of one rank."""

    def __init__(self, framework: Any, library: ModuleType, device: str) -> None:
        self.framework, self.library, self.device = framework, library, device
        self.rank, self.size = library.Exchange().rank, library.Exchange().world_size

    def tensor(self, bits: np.ndarray, dtype: str) -> Any:
        make = getattr(self.framework, "from_numpy", None) or self.framework.to_tensor
        signed = bits.view(SIGNED[bits.dtype.itemsize])
        return make(signed).view(getattr(self.framework, dtype)).to(self.device)

    def bits(self, tensor: Any) -> np.ndarray:
        signed = getattr(self.framework, SIGNED[tensor.element_size()])
        return np.asarray(tensor.contiguous().view(signed).cpu().numpy())

    def given(self, rank: int, dtype: str, experts_per_token: int) -> tuple[np.ndarray, np.ndarray]:
        """Return random bits as payload, and expert numbers; any rank can make those of another."""
        rng = np.random.default_rng([rank, self.size, DTYPES.index(dtype), experts_per_token])
        tokens = 64 + 17 * rank
        size = 4 if dtype == "float32" else 2
        x = rng.integers(0, 256, (tokens, HIDDEN * size), dtype=np.uint8)
        idx = np.full((tokens, K), -1, np.int64)
        total = LOCAL_EXPERTS * self.size
        for row in idx:
            row[:experts_per_token] = rng.choice(total, experts_per_token, replace=False)
        return x.view(f"int{8 * size}"), idx

    def expected(self, dtype: str, experts_per_token: int) -> np.ndarray:
        """Return the payload that this rank must receive: by source rank, in the source's order."""
        rows = []
        for source in range(self.size):
            x, idx = self.given(source, dtype, experts_per_token)
            here = ((idx >= 0) & (idx // LOCAL_EXPERTS == self.rank)).any(axis=1)
            rows.append(x[here])
        return np.concatenate(rows)

    def run(self, dtype: str, experts_per_token: int) -> str:
        x, idx = self.given(self.rank, dtype, experts_per_token)
        buffer = self.library.Buffer(LOCAL_EXPERTS * self.size)
        weights = self.tensor(np.ones(idx.shape, np.float32), "float32")
        got = buffer.dispatch(self.tensor(x, dtype), self.tensor(idx, "int64"), weights)
        np.testing.assert_array_equal(self.bits(got.x), self.expected(dtype, experts_per_token))
        if experts_per_token == 1:
            out = buffer.combine(got.x, got.handle)
            np.testing.assert_array_equal(self.bits(out), x)
        else:
            self.check_sum(buffer, got, idx)
        return f"{len(x)} tokens sent, {sum(got.handle.received_per_rank)} received"

    def check_sum(self, buffer: Any, got: Any, idx: np.ndarray) -> None:
        """Let every rank answer with ``2 ** rank``: the sum tells exactly which ranks took part."""
        answer = np.full((sum(got.handle.received_per_rank), 1), 2.0**self.rank, np.float32)
        out = buffer.combine(self.tensor(answer, "float32"), got.handle)
        wanted = [sum(2.0**rank for rank in {e // LOCAL_EXPERTS for e in row}) for row in idx]
        found = self.bits(out).view(np.float32)[:, 0]
        np.testing.assert_array_equal(found, np.array(wanted, np.float32))


def main() -> int:
    start = start_paddle if "PADDLE_TRAINER_ID" in os.environ else start_torch
    framework, library, device = start()
    check = Check(framework, library, device)
    if check.size < 2:
        print("FAILED: started as a single rank, which checks nothing; start it with a launcher")
        return 1
    backend = framework.distributed.get_backend()
    name = f"rank {check.rank} of {check.size} ({framework.__name__}, {backend}, {device})"
    try:
        for dtype in DTYPES:
            for experts_per_token in (1, K):
                print(
                    f"{name}: {dtype}, k={experts_per_token}: {check.run(dtype, experts_per_token)}"
                )
    except Exception:  # the launcher must see the exit status, whatever went wrong
        traceback.print_exc()
        print(f"{name}: FAILED", flush=True)
        return 1
    framework.distributed.barrier()
    # torch's gloo may abort ("terminate called without an active exception") in a process that
    # leaves its group undestroyed.
    framework.distributed.destroy_process_group()
    print(f"{name}: passed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
