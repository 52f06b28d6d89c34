"""What is known of distributions by name: what Paddle stands in for or brings, and which modules they hold.

Names are canonical (PEP 503). A distribution that is not listed holds the module of its own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Paddle answers `import torch` inside the compat guard, so the real torch must not come into the
# environment: it would be picked up by whatever is imported after the guard. What requires torch in turn
# would bring it: torch-c-dlpack-ext (its METADATA) only adds DLPack to a torch that lacks it.
TORCH_BY_COMPAT: Mapping[str, str] = {
    "torch": "Paddle answers `import torch` inside the compat guard",
    "torch-c-dlpack-ext": "requires the real torch, and only adds DLPack to it",
}

# Requires-Dist of paddlepaddle 3.3.1. A test compares it with the installed one.
PADDLE_BRINGS = (
    "httpx",
    "numpy>=1.21",
    "protobuf>=3.20.2",
    "Pillow",
    "opt_einsum==3.3.0",
    "networkx",
    "typing_extensions",
    "safetensors>=0.6.0",
    'setuptools; python_version >= "3.12"',
)

# The names that Paddle itself has on package indexes.
PADDLE = frozenset({"paddlepaddle", "paddlepaddle-gpu"})

_MODULES: Mapping[str, tuple[str, ...]] = {
    "apache-tvm-ffi": ("tvm_ffi",),
    "fla-core": ("fla",),
    "flash-linear-attention": ("fla",),
    "flash-linear-attention-paddle": ("fla",),
    "nvidia-cudnn-frontend": ("cudnn",),
    "nvidia-cutlass-dsl": ("cutlass",),
    "nvidia-ml-py": ("pynvml",),
    "opt-einsum": ("opt_einsum",),
    "pillow": ("PIL",),
    "protobuf": ("google",),
    "pytorch-triton": ("triton",),
    "pyyaml": ("yaml",),
    "quack-kernels": ("quack",),
    "sonic-moe": ("sonicmoe",),
    "tilelang-paddle": ("tilelang",),
}


def modules_of(distribution: str) -> tuple[str, ...]:
    """The top-level modules of a distribution, by its canonical name."""
    return _MODULES.get(distribution, (distribution.replace("-", "_"),))


def distributions_with(module: str) -> frozenset[str]:
    """The listed distributions that hold the top-level ``module``."""
    return frozenset(name for name, modules in _MODULES.items() if module in modules)


@dataclass(frozen=True)
class PipException:
    """A migrated library that is a plain pip dependency of the main package, never a submodule."""

    distribution: str
    module: str
    why: str


# The guide's heading on library kinds names the one exception.
PIP_EXCEPTIONS = (
    PipException(
        "tilelang-paddle",
        "tilelang",
        "a normal dependency of PaddleFleet's main package, imported as tilelang; who uses it opens "
        "the compat guard",
    ),
)
