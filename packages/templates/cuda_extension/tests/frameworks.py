"""The two frameworks behind one small interface, so that every test runs with both."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

import numpy as np

NAMES = ("torch", "paddle")


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _forget_operators() -> None:
    """Let the next import run again: the package binds to the framework that its import finds."""
    for name in [name for name in sys.modules if name.split(".")[0] == "fused_norm"]:
        del sys.modules[name]


class TorchFramework:
    name = "torch"

    def __init__(self) -> None:
        import torch

        self.torch = torch
        _forget_operators()
        self.operators: ModuleType = importlib.import_module("fused_norm")

    def why_not(self, device: str) -> str:
        """Return why tensors can't be made on `device`, or an empty text."""
        if device == "cpu":
            return ""
        return "" if self.torch.cuda.is_available() else "torch sees no CUDA GPU"

    def gpu_count(self) -> int:
        return int(self.torch.cuda.device_count())

    def tensor(self, values: np.ndarray, dtype: str, device: str) -> Any:
        source = self.torch.from_numpy(np.array(values, order="C"))
        return source.to(getattr(self.torch, dtype)).to(device)

    def numpy(self, tensor: Any) -> np.ndarray:
        return np.asarray(tensor.detach().cpu().to(self.torch.float64).numpy())

    def dtype_name(self, tensor: Any) -> str:
        return str(tensor.dtype).removeprefix("torch.")

    @contextlib.contextmanager
    def side_stream(self) -> Any:
        stream = self.torch.cuda.Stream()
        self.torch.cuda.synchronize()
        with self.torch.cuda.stream(stream):
            yield
        stream.synchronize()

    def matmul(self, a: Any, b: Any) -> Any:
        return self.torch.matmul(a, b)

    def require_gradient(self, tensor: Any) -> None:
        tensor.requires_grad_(True)

    def no_grad(self) -> Any:
        return self.torch.no_grad()


class PaddleFramework:
    name = "paddle"

    def __init__(self) -> None:
        import paddle

        self.paddle = paddle
        _forget_operators()
        with paddle.use_compat_guard(scope={"fused_norm"}, silent=True):
            self.operators: ModuleType = importlib.import_module("fused_norm")

    def why_not(self, device: str) -> str:
        """Return why tensors can't be made on `device`, or an empty text."""
        if device == "cpu":
            return ""
        if not self.paddle.is_compiled_with_cuda():
            return "this paddle is built without CUDA"
        return "" if self.gpu_count() else "paddle sees no CUDA GPU"

    def gpu_count(self) -> int:
        return int(self.paddle.device.cuda.device_count())

    def tensor(self, values: np.ndarray, dtype: str, device: str) -> Any:
        kind, _, index = device.partition(":")
        place = self.paddle.CPUPlace() if kind == "cpu" else self.paddle.CUDAPlace(int(index or 0))
        return self.paddle.to_tensor(np.array(values, order="C"), place=place).astype(dtype)

    def numpy(self, tensor: Any) -> np.ndarray:
        return np.asarray(tensor.detach().cpu().astype("float64").numpy())

    def dtype_name(self, tensor: Any) -> str:
        return str(tensor.dtype).removeprefix("paddle.")

    @contextlib.contextmanager
    def side_stream(self) -> Any:
        stream = self.paddle.device.Stream()
        self.paddle.device.synchronize()
        with self.paddle.device.stream_guard(stream):
            yield
        stream.synchronize()

    def matmul(self, a: Any, b: Any) -> Any:
        return self.paddle.matmul(a, b)

    def require_gradient(self, tensor: Any) -> None:
        tensor.stop_gradient = False

    def no_grad(self) -> Any:
        return self.paddle.no_grad()


Framework = TorchFramework | PaddleFramework


def load(name: str) -> Framework:
    """Import the framework, and the operators bound to it."""
    return TorchFramework() if name == "torch" else PaddleFramework()
