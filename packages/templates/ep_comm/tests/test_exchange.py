"""What the ranks recorded, against the simulation of the whole exchange in one process."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from conftest import World
from scenarios import BITS, SCENARIOS, from_bits, make_input

# Unit roundoff of each dtype: float32 arithmetic first, then one rounding per rank and one of the sum.
_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
# float16 below 2**-14 has an absolute error of half its smallest step.
_SMALLEST = {"float16": 2.0**-25}


def is_refused(world: World, scenario: str) -> bool:
    """Point-to-point on Paddle's gloo with an odd number of ranks: must be refused, not hang."""
    odd = world.size % 2 == 1 and world.size > 1
    return world.framework == "paddle" and odd and SCENARIOS[scenario].transport == "p2p"


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_bit_is_that_of_the_simulation(world: World, name: str) -> None:
    scenario = SCENARIOS[name]
    if is_refused(world, name):
        assert all("even number of ranks" in notes[name]["refused"] for notes in world.notes)
        return
    for rank, expected in enumerate(oracle.simulate(scenario, world.size)):
        got, notes = world.arrays(name, rank), world.notes[rank][name]
        np.testing.assert_array_equal(got["x_bits"], expected.x_bits)
        np.testing.assert_array_equal(got["idx"], expected.idx)
        np.testing.assert_array_equal(got["weight_bits"], expected.weight_bits)
        np.testing.assert_array_equal(got["combined_bits"], expected.combined_bits)
        np.testing.assert_array_equal(got["again_bits"], expected.combined_bits)
        assert got["x_bits"].dtype == BITS[scenario.dtype]
        assert got["combined_bits"].shape == expected.combined_bits.shape
        assert notes["dtype"] == scenario.dtype
        assert notes["received_per_rank"] == expected.received_per_rank
        assert notes["sent_per_rank"] == expected.sent_per_rank
        assert notes["tokens_per_expert"] == expected.tokens_per_expert


@pytest.mark.parametrize(
    "name", [name for name, scenario in SCENARIOS.items() if scenario.experts == "identity"]
)
def test_one_expert_per_token_and_no_arithmetic_returns_the_very_input(
    world: World, name: str
) -> None:
    if is_refused(world, name):
        pytest.skip("refused; test_every_bit_is_that_of_the_simulation looks at the refusal")
    for rank in range(world.size):
        sent = make_input(SCENARIOS[name], rank, world.size).x_bits
        np.testing.assert_array_equal(world.arrays(name, rank)["combined_bits"], sent)


@pytest.mark.parametrize("dtype", BITS)
def test_result_is_near_the_layer_on_one_rank_in_float64(world: World, dtype: str) -> None:
    scenario = SCENARIOS[f"scaled-{dtype}"]
    for rank in range(world.size):
        bits = world.arrays(scenario.name, rank)["combined_bits"]
        wanted, magnitude = oracle.one_rank_reference(scenario, rank, world.size)
        # A rounding per rank and one of the sum, then 3 k float32 steps.
        unit, steps = _ROUNDOFF[dtype], 3 * scenario.k
        bound = (2 * unit + steps * 2.0**-24) * 1.01 * magnitude
        floor = (world.size + 1) * _SMALLEST.get(dtype, 0.0)
        error = np.abs(from_bits(bits, dtype).astype(np.float64) - wanted)
        assert (error <= bound + floor).all()


def test_auto_takes_all_to_all_where_there_is_one(world: World) -> None:
    wanted = {"torch": "all_to_all", "paddle": "all_gather"}[world.framework]
    wanted = "local" if world.size == 1 else wanted
    assert {notes["uneven"]["transport"] for notes in world.notes} == {wanted}


def test_auto_without_all_to_all_finds_another_way(world: World) -> None:
    wanted = {"torch": "p2p", "paddle": "all_gather"}[world.framework]
    wanted = "local" if world.size == 1 else wanted
    for notes in world.notes:
        assert notes["fallback"] == {"transport": wanted, "rows": list(range(world.size))}


@pytest.mark.parametrize("transport", ["auto", "all_gather"])
def test_all_to_all_v(world: World, transport: str) -> None:
    for rank, notes in enumerate(world.notes):
        counts = [(source + rank) % 3 for source in range(world.size)]
        values = [10 * source + rank for source in range(world.size) for _ in range(counts[source])]
        assert notes[f"all_to_all_v-{transport}"] == {
            "rows": [[value, -value] for value in values],
            "counts": counts,
        }
        assert notes["all_to_all_v-wrong"][0] == "ValueError"


@pytest.mark.parametrize(
    ("name", "own"),
    [("bad-expert", "topk_idx has expert numbers"), ("short-y", "one row for each received token")],
)
def test_refused_input_of_one_rank_raises_on_all(world: World, name: str, own: str) -> None:
    last = world.size - 1
    for rank, notes in enumerate(world.notes):
        kind, message = notes[name]
        if rank == last:
            assert kind == "ValueError"
            assert own in message
        else:
            assert kind == "RuntimeError"
            assert f"rank {last} of the group refused" in message


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("other-hidden", "hidden size"),
        ("other-handle", "the dispatch that the handle is from"),
        ("mixed-calls", "the operation that they call"),
    ],
)
def test_ranks_that_differ_raise_on_all(world: World, name: str, what: str) -> None:
    if world.size == 1:
        pytest.skip("one rank can't differ from itself")
    for notes in world.notes:
        kind, message = notes[name]
        assert kind == "RuntimeError"
        assert what in message
        assert "nothing was sent" in message


def test_exchange_works_after_refusals(world: World) -> None:
    assert all(notes["still-works"] for notes in world.notes)


def test_experts_must_divide_evenly(world: World) -> None:
    for notes in world.notes:
        kind, message = notes["uneven-experts"]
        if world.size == 1:
            assert kind == "nothing"
        else:
            assert kind == "ValueError"
            experts = 3 * world.size + 1
            assert f"{experts} experts cannot be divided evenly over {world.size}" in message
            assert f"such as {4 * world.size}" in message


def test_unknown_transport_is_refused_with_the_choices(world: World) -> None:
    for notes in world.notes:
        assert notes["unknown-transport"][0] == "ValueError"
        assert "all_to_all, p2p, all_gather" in notes["unknown-transport"][1]


@pytest.mark.parametrize("transport", ["auto", "all_gather", "p2p"])
def test_group_of_some_ranks(world: World, transport: str) -> None:
    if world.size < 3:
        pytest.skip("needs at least 3 ranks")
    members = [world.size - 2, world.size - 1]
    for number, notes in enumerate(world.notes):
        if number in members:
            wanted = {"rank": members.index(number), "rows": [7 + member for member in members]}
            assert notes[f"subgroup-{transport}"] == wanted
        else:
            assert notes["outsider"][0] == "RuntimeError"
            assert "not a member of the group" in notes["outsider"][1]
