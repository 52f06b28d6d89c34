"""Packages that import torch while they are loaded: data for the rule on compat scopes.

What a library imports, and does not declare in its compat scope, gets the torch that is installed here, or
none. A package is in this table only with how that is known.
"""

from __future__ import annotations

TORCH_IMPORTERS: dict[str, str] = {
    "triton": "PaddleFleet's loader lists it in the scopes of deep_gemm and sonicmoe",
}
