"""Load-balanced expert placement and token batching for mixture-of-experts models.

Every submodule is imported here, so that all of them are initialised in the same framework context:
``import torch`` inside this package means PyTorch, or Paddle when the import happens inside
``paddle.use_compat_guard(scope={"expert_placement"})``.
"""

from __future__ import annotations

from pathlib import Path

from expert_placement import batching, placement, routing
from expert_placement.batching import Batches, pack_in_order, pack_sequences
from expert_placement.placement import Packing, Placement, pack_balanced, place_experts, replicate
from expert_placement.routing import Grouping, group_by_expert

__all__ = [
    "Batches",
    "Grouping",
    "Packing",
    "Placement",
    "batching",
    "get_include",
    "group_by_expert",
    "pack_balanced",
    "pack_in_order",
    "pack_sequences",
    "place_experts",
    "placement",
    "replicate",
    "routing",
]

__version__ = "0.1.0"


def get_include() -> str:
    """The folder to pass to ``-I``, so that C++17 code can use ``<expert_placement/...hpp>``."""
    return str(Path(__file__).parent / "include")
