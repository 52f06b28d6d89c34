"""The frameworks, as far as the tests need them: start a group, import the library, move bits."""

from __future__ import annotations

import importlib
import importlib.util
import os
from types import ModuleType
from typing import Any

import numpy as np

NAMES = ("torch", "paddle")
_SIGNED = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


def missing(name: str) -> str:
    """Return why `name` can't be used here, or an empty text."""
    return "" if importlib.util.find_spec(name) else f"{name} is not installed in this environment"


class TorchFramework:
    """PyTorch; gloo on the CPU."""

    def __init__(self) -> None:
        self.torch = importlib.import_module("torch")
        self.dist = importlib.import_module("torch.distributed")

    def start(self) -> None:
        self.dist.init_process_group("gloo")

    def library(self) -> ModuleType:
        return importlib.import_module("ep_exchange")

    def new_group(self, ranks: list[int]) -> Any:
        return self.dist.new_group(ranks)

    def barrier(self) -> None:
        self.dist.barrier()

    def stop(self) -> None:
        self.dist.destroy_process_group()

    def tensor(self, bits: np.ndarray, dtype: str) -> Any:
        """Return a tensor of `dtype` with these bits."""
        signed = np.array(bits, order="C").view(_SIGNED[bits.dtype.itemsize])
        return self.torch.from_numpy(signed).view(getattr(self.torch, dtype))

    def bits(self, tensor: Any) -> np.ndarray:
        """Return the bits of a tensor as unsigned integers."""
        signed = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}[tensor.element_size()]
        array = tensor.contiguous().view(getattr(self.torch, signed)).numpy()
        return array.view(f"uint{8 * array.dtype.itemsize}")


class PaddleFramework(TorchFramework):
    """Paddle through its torch proxy; gloo on the CPU."""

    def __init__(self) -> None:
        os.environ["PADDLE_DISTRI_BACKEND"] = "gloo"
        self.torch = importlib.import_module("paddle")
        self.torch.set_device("cpu")
        self.dist = self.torch.distributed

    def start(self) -> None:
        self.dist.init_parallel_env()

    def library(self) -> ModuleType:
        with self.torch.use_compat_guard(scope={"ep_exchange"}, silent=True):
            return importlib.import_module("ep_exchange")

    def barrier(self) -> None:
        # One rank has no group: init_parallel_env makes none then.
        if self.dist.is_initialized():
            self.dist.barrier()

    def stop(self) -> None:
        if self.dist.is_initialized():
            self.dist.destroy_process_group()

    def tensor(self, bits: np.ndarray, dtype: str) -> Any:
        signed = np.array(bits, order="C").view(_SIGNED[bits.dtype.itemsize])
        # Paddle 3.3.1 can't view an empty tensor as another dtype.
        if bits.size == 0:
            return self.torch.zeros(list(bits.shape), dtype=dtype)
        return self.torch.to_tensor(signed).view(getattr(self.torch, dtype))

    def bits(self, tensor: Any) -> np.ndarray:
        unsigned = f"uint{8 * tensor.element_size()}"
        if 0 in tensor.shape:
            return np.zeros(list(tensor.shape), dtype=unsigned)
        return super().bits(tensor)


def load(name: str) -> TorchFramework:
    return {"torch": TorchFramework, "paddle": PaddleFramework}[name]()
