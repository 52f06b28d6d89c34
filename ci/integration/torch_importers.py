"""Modules that import torch while they are loaded: data for the rules on compat scopes and late imports.

What a library imports, and does not declare in its compat scope, gets the torch that is installed here, or
none. A module is in this table only with how that is known: *read* in the sources of that release, or *run*
with a torch beside it. Not in it: tvm_ffi, which Paddle's proxy leaves alone by itself.
"""

from __future__ import annotations

TORCH_IMPORTERS: dict[str, str] = {
    "accelerate": "1.16.0, read and run",
    "causal_conv1d": "1.7.0, read",
    "cutlass.torch": "nvidia-cutlass-dsl 4.8.1, run; import cutlass alone does not",
    "einops.layers.torch": "0.8.2, read and run; import einops alone does not",
    "flash_attn": "2.8.3, read",
    "liger_kernel": "0.8.5, read",
    "mamba_ssm": "2.3.2, read",
    "quack": "0.6.5 and 0.3.7, read and run",
    "safetensors.torch": "0.8.0, read and run; import safetensors alone does not",
    "sonicmoe": "0.1.2, read",
    "tilelang": "0.1.15, read and run",
    "torch_c_dlpack_ext": "0.1.5, read and run",
    "torchaudio": "2.11.1, read",
    "torchvision": "0.29.1, read",
    "transformers.configuration_utils": "5.25.0, run; import transformers alone does not",
    "transformers.modeling_utils": "5.25.0, run; import transformers alone does not",
    "transformers.processing_utils": "5.25.0, run; import transformers alone does not",
    "triton": "its driver does when it is asked for, as libraries do while they are loaded; "
    "PaddleFleet's loader lists it in its scopes",
    "xformers": "0.0.35, read",
}
