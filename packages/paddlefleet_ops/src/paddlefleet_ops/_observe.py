"""Asking the machine: the interpreter, Paddle, the current device, the environment variables.

The only file of the package that does. Nothing here starts a process, runs nvcc or writes a file.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from ._requires import Environment, Version, parse_version

ON_ERROR_VARIABLE = "PADDLEFLEET_OPS_ON_ERROR"
ON_ERROR_VALUES = ("raise", "block")


def import_paddle() -> ModuleType:
    """Paddle. Raises :class:`ImportError` when it is absent or has no ``use_compat_guard``."""
    try:
        paddle = importlib.import_module("paddle")
    except ModuleNotFoundError as error:
        if error.name != "paddle":
            raise
        raise ImportError(
            "paddlefleet_ops needs PaddlePaddle, and there is no module named paddle. Install the "
            "build for this machine: pip install paddlepaddle (CPU), or paddlepaddle-gpu from "
            "Paddle's own package index, for the CUDA version of this wheel.",
            name="paddle",
        ) from error
    if not hasattr(paddle, "use_compat_guard"):
        version = getattr(paddle, "__version__", "of unknown version")
        raise ImportError(
            f"paddlefleet_ops needs paddle.use_compat_guard, which this Paddle ({version}, "
            f"{getattr(paddle, '__file__', None)}) does not have. Install a newer one: "
            "pip install 'paddlepaddle>=3.3'.",
            name="paddle",
        )
    return paddle


def observe(paddle: Any, *, with_capability: bool) -> Environment:
    """What the gates of the libraries are decided by.

    ``python`` is major and minor, as a cell has it. The compute capability is that of the current
    device and is asked for only ``with_capability``, because asking initialises the CUDA runtime; a
    question that cannot be answered becomes the reason ``no_gpu`` and never an error.
    """
    cuda, no_cuda = _cuda_version(paddle)
    capabilities: tuple[tuple[int, int], ...] = ()
    no_gpu = no_cuda
    if cuda is not None and with_capability:
        capabilities, no_gpu = _capability(paddle)
    return Environment(
        python=sys.version_info[:2],
        cuda=cuda,
        capabilities=capabilities,
        no_gpu=no_gpu,
        no_cuda=no_cuda,
    )


def _cuda_version(paddle: Any) -> tuple[Version | None, str]:
    """``paddle.version.cuda()`` is the text ``"False"`` in a build without CUDA."""
    without = "this Paddle was built without CUDA"
    try:
        text = str(paddle.version.cuda())
        return (None if text in ("False", "None", "") else parse_version(text)), without
    except Exception as error:
        return None, _failed("asking Paddle for its CUDA version", error)


def _capability(paddle: Any) -> tuple[tuple[tuple[int, int], ...], str]:
    try:
        if paddle.device.cuda.device_count() < 1:
            return (), "no CUDA device was found"
        major, minor = paddle.device.cuda.get_device_capability()
        return ((int(major), int(minor)),), ""
    except Exception as error:
        return (), _failed("asking the CUDA device", error)


def _failed(question: str, error: Exception) -> str:
    """Whatever Paddle or a driver raises is a reason, not a crash."""
    text = str(error).strip()
    last_line = text.splitlines()[-1].strip() if text else "without a message"
    return f"{question} failed: {type(error).__name__}: {last_line}"


def on_error() -> str:
    """What to do with a library that should load but fails: ``"raise"`` or ``"block"`` it.

    Taken from ``PADDLEFLEET_OPS_ON_ERROR``; empty or unset is ``"raise"``. Raises
    :class:`ValueError` for any other value.
    """
    value = os.environ.get(ON_ERROR_VARIABLE, "").strip() or ON_ERROR_VALUES[0]
    if value not in ON_ERROR_VALUES:
        raise ValueError(
            f"{ON_ERROR_VARIABLE} is {value!r}, which is not one of {', '.join(ON_ERROR_VALUES)}. "
            "'raise' (the default) stops the import of paddlefleet_ops when a library that should "
            "load fails; 'block' keeps the others and gives the cause where the library is used. "
            f"Set it to one of them, or: unset {ON_ERROR_VARIABLE}"
        )
    return value


def is_report(package: str, argv: Sequence[str]) -> bool:
    """True when ``argv``, as in :data:`sys.orig_argv`, is ``python [options] -m package …``.

    The package is imported before its ``__main__`` runs, and the report must name a failed library
    where the import would stop at it.
    """
    for index, argument in enumerate(argv[1:], start=1):
        if argument == "-m":
            return list(argv[index + 1 : index + 2]) == [package]
        if argument == f"-m{package}":
            return True
        if argument == "-c" or (
            not argument.startswith("-") and argv[index - 1] not in ("-W", "-X")
        ):
            return False
    return False
