"""The whole exchange in one process, in plain loops over NumPy arrays; nothing of ep_exchange."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scenarios import (
    BITS,
    SCALES,
    RankInput,
    Scenario,
    expert_results,
    from_bits,
    make_input,
    to_bits,
)


@dataclass(frozen=True)
class Expected:
    """What one rank must receive, what it must get back, and what combine may not exceed."""

    x_bits: np.ndarray
    idx: np.ndarray
    weight_bits: np.ndarray
    received_per_rank: list[int]
    sent_per_rank: list[int]
    tokens_per_expert: list[int]
    combined_bits: np.ndarray


def _destinations(row: np.ndarray, local_experts: int) -> list[int]:
    return sorted({int(expert) // local_experts for expert in row if expert >= 0})


def simulate(scenario: Scenario, size: int) -> list[Expected]:
    """Return what every rank must see, by rank."""
    inputs = [make_input(scenario, rank, size) for rank in range(size)]
    routes = [
        [_destinations(row, scenario.local_experts) for row in rank_input.idx]
        for rank_input in inputs
    ]
    received = [_receive(scenario, inputs, routes, rank) for rank in range(size)]
    results = [
        expert_results(scenario, x, idx, weights, rank)
        for rank, (x, idx, weights, _) in enumerate(received)
    ]
    combined = _combine(scenario, routes, results, received)
    local = scenario.local_experts
    return [
        Expected(
            x,
            idx,
            weights,
            [sum(1 for source, _ in origin if source == rank) for rank in range(size)],
            [sum(1 for to in routes[me] if rank in to) for rank in range(size)],
            [int((idx == expert).sum()) for expert in range(local)],
            combined[me],
        )
        for me, (x, idx, weights, origin) in enumerate(received)
    ]


_Received = tuple[np.ndarray, np.ndarray, np.ndarray, list[tuple[int, int]]]


def _receive(
    scenario: Scenario, inputs: list[RankInput], routes: list[list[list[int]]], rank: int
) -> _Received:
    """Return rows, local experts, weights, and (source, token) of each row that `rank` receives."""
    local = scenario.local_experts
    origin = [
        (source, token)
        for source, destinations in enumerate(routes)
        for token, ranks in enumerate(destinations)
        if rank in ranks
    ]
    x = np.zeros((len(origin), scenario.hidden), BITS[scenario.dtype])
    idx = np.full((len(origin), scenario.k), -1, scenario.index_dtype)
    weights = np.zeros((len(origin), scenario.k), BITS[scenario.weight_dtype])
    for row, (source, token) in enumerate(origin):
        x[row] = inputs[source].x_bits[token]
        for place, expert in enumerate(inputs[source].idx[token]):
            if expert >= 0 and expert // local == rank:
                idx[row, place] = expert - rank * local
                weights[row, place] = inputs[source].weight_bits[token, place]
    return x, idx, weights, origin


def _combine(
    scenario: Scenario,
    routes: list[list[list[int]]],
    results: list[np.ndarray],
    received: list[_Received],
) -> list[np.ndarray]:
    """Sum each token's results from the lowest rank up, in float32 (or float64), rounding once."""
    where = [{key: row for row, key in enumerate(part[3])} for part in received]
    combined = []
    for source, destinations in enumerate(routes):
        out = np.zeros((len(destinations), scenario.hidden), BITS[scenario.dtype])
        for token, ranks in enumerate(destinations):
            parts = [results[rank][where[rank][source, token]] for rank in ranks]
            if len(parts) == 1:
                out[token] = parts[0]
            elif parts:
                total = from_bits(parts[0], scenario.dtype)
                for part in parts[1:]:
                    total = total + from_bits(part, scenario.dtype)
                out[token] = to_bits(total, scenario.dtype)
        combined.append(out)
    return combined


def one_rank_reference(scenario: Scenario, rank: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the layer's output without any exchange, in float64, and the sum of magnitudes."""
    rank_input = make_input(scenario, rank, size)
    x = from_bits(rank_input.x_bits, scenario.dtype).astype(np.float64)
    weights = from_bits(rank_input.weight_bits, scenario.weight_dtype).astype(np.float64)
    used = rank_input.idx >= 0
    factors = np.where(used, weights * SCALES.astype(np.float64)[rank_input.idx % 5], 0.0)
    return x * factors.sum(axis=1)[:, None], np.abs(x) * np.abs(factors).sum(axis=1)[:, None]
