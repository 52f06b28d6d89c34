"""Token dispatch and combine for expert parallelism, over a process group.

    buffer = ep_exchange.Buffer(num_experts=64)
    received = buffer.dispatch(x, topk_idx, topk_weights)
    y = experts(received.x, received.topk_idx, received.topk_weights)
    out = buffer.combine(y, received.handle)

Every module is imported here, so that all of them see the same ``torch``: PyTorch, or Paddle's
proxy while ``paddle.use_compat_guard(scope={"ep_exchange"})`` is open. A module that was imported
later, outside the guard, would find another one, or none.
"""

from __future__ import annotations

from ep_exchange._bytes import from_bytes, to_bytes
from ep_exchange._collectives import TRANSPORTS, Exchange, all_to_all_v
from ep_exchange._reduce import add_in_rank_order
from ep_exchange._routing import Route, plan_route, to_local_experts
from ep_exchange.buffer import Buffer, Dispatched, Handle

__all__ = [
    "TRANSPORTS",
    "Buffer",
    "Dispatched",
    "Exchange",
    "Handle",
    "Route",
    "add_in_rank_order",
    "all_to_all_v",
    "from_bytes",
    "plan_route",
    "to_bytes",
    "to_local_experts",
]
