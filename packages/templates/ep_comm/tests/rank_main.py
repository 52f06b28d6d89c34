"""What one rank does: every scenario, then the cases that need several ranks to go wrong together.

The rank only records; the test compares the records with the oracle.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import frameworks
from scenarios import SCENARIOS, Scenario, expert_results, make_input


class Rank:
    """One rank: framework, library, its number, and the folder of its records."""

    def __init__(self, framework: str, folder: Path) -> None:
        self.framework = frameworks.load(framework)
        self.framework.start()
        self.ep: Any = self.framework.library()
        self.number, self.size = self.ep.Exchange().rank, self.ep.Exchange().world_size
        self.folder = folder
        self.notes: dict[str, Any] = {}

    def tensors(self, scenario: Scenario) -> tuple[Any, Any, Any]:
        given = make_input(scenario, self.number, self.size)
        return (
            self.framework.tensor(given.x_bits, scenario.dtype),
            self.framework.tensor(given.idx, scenario.index_dtype),
            self.framework.tensor(given.weight_bits, scenario.weight_dtype),
        )

    def experts(self, scenario: Scenario, got: Any) -> Any:
        bits = expert_results(
            scenario,
            self.framework.bits(got.x),
            self.framework.bits(got.topk_idx).view(scenario.index_dtype),
            self.framework.bits(got.topk_weights),
            self.number,
        )
        return self.framework.tensor(bits, scenario.dtype)

    def run_scenario(self, scenario: Scenario) -> None:
        buffer = self.ep.Buffer(scenario.local_experts * self.size, transport=scenario.transport)
        try:
            got = buffer.dispatch(*self.tensors(scenario))
            y = self.experts(scenario, got)
            out = buffer.combine(y, got.handle)
            again = buffer.combine(y, got.handle)
        except ValueError as error:
            self.notes[scenario.name] = {"refused": str(error)}
            return
        np.savez(
            self.folder / f"{scenario.name}.rank{self.number}.npz",
            x_bits=self.framework.bits(got.x),
            idx=self.framework.bits(got.topk_idx).view(scenario.index_dtype),
            weight_bits=self.framework.bits(got.topk_weights),
            combined_bits=self.framework.bits(out),
            again_bits=self.framework.bits(again),
        )
        self.notes[scenario.name] = {
            "transport": buffer.transport,
            "dtype": str(out.dtype).rpartition(".")[2],
            "received_per_rank": got.handle.received_per_rank,
            "sent_per_rank": got.handle.sent_per_rank,
            "tokens_per_expert": list(got.handle.tokens_per_expert),
        }

    def error_of(self, call: Callable[[], Any]) -> list[str]:
        try:
            call()
        except (ValueError, RuntimeError) as error:
            return [type(error).__name__, str(error)]
        return ["nothing", ""]

    def run_refusals(self) -> None:
        """One rank passes nonsense; all must raise, and go on afterwards."""
        scenario = SCENARIOS["scaled-float32"]
        buffer = self.ep.Buffer(scenario.local_experts * self.size)
        x, idx, weights = self.tensors(scenario)
        last = self.number == self.size - 1
        bad_idx = idx + 1000 if last else idx
        self.notes["bad-expert"] = self.error_of(lambda: buffer.dispatch(x, bad_idx, weights))
        narrow = x[:, :4] if last else x
        self.notes["other-hidden"] = self.error_of(lambda: buffer.dispatch(narrow, idx, weights))
        got = buffer.dispatch(x, idx, weights)
        later = buffer.dispatch(x, idx, weights)
        y = self.experts(scenario, got)
        handle = later.handle if last else got.handle
        self.notes["other-handle"] = self.error_of(lambda: buffer.combine(y, handle))
        short = y[1:] if last else y
        self.notes["short-y"] = self.error_of(lambda: buffer.combine(short, got.handle))
        mixed = (
            (lambda: buffer.combine(y, got.handle))
            if last
            else (lambda: buffer.dispatch(x, idx, weights))
        )
        self.notes["mixed-calls"] = self.error_of(mixed)
        first = self.framework.bits(buffer.combine(y, later.handle))
        second = self.framework.bits(buffer.combine(y, got.handle))
        self.notes["still-works"] = bool((first == second).all())
        wanted = scenario.local_experts * self.size + 1
        self.notes["uneven-experts"] = self.error_of(lambda: self.ep.Buffer(wanted))
        self.notes["unknown-transport"] = self.error_of(lambda: self.ep.Exchange(None, "carrier"))

    def run_all_to_all_v(self) -> None:
        """Rank s sends ``(s + d) % 3`` rows of the value ``10 s + d`` to rank d."""
        counts = [(self.number + to) % 3 for to in range(self.size)]
        values = np.repeat(10 * self.number + np.arange(self.size), counts)
        rows = self.framework.tensor(np.stack([values, -values], axis=1).astype(np.int64), "int64")
        for transport in ("auto", "all_gather"):
            out, received = self.ep.all_to_all_v(rows, counts, None, transport)
            bits = self.framework.bits(out).view(np.int64).tolist()
            self.notes[f"all_to_all_v-{transport}"] = {"rows": bits, "counts": received}
        wrong = [count + 1 for count in counts]
        self.notes["all_to_all_v-wrong"] = self.error_of(lambda: self.ep.all_to_all_v(rows, wrong))

    def run_fallback(self) -> None:
        """Take the all-to-all functions away; `auto` must find another way."""
        module = sys.modules["ep_exchange._collectives"]
        original = module.all_to_all_function
        module.all_to_all_function = lambda: None
        try:
            exchange = self.ep.Exchange()
            rows = self.framework.tensor(np.full((self.size, 1), self.number, np.int64), "int64")
            out, _ = exchange.all_to_all_v(rows, [1] * self.size)
        finally:
            module.all_to_all_function = original
        self.notes["fallback"] = {
            "transport": exchange.transport,
            "rows": self.framework.bits(out).reshape(-1).tolist(),
        }

    def run_subgroup(self) -> None:
        """The last two ranks form a group, in which they are 0 and 1."""
        members = [self.size - 2, self.size - 1]
        group = self.framework.new_group(members)
        if self.number in members:
            for transport in ("auto", "all_gather", "p2p"):
                exchange = self.ep.Exchange(group, transport)
                mine = np.full((2, 1), 7 + self.number, np.int64)
                out, _ = exchange.all_to_all_v(self.framework.tensor(mine, "int64"), [1, 1])
                rows = self.framework.bits(out).reshape(-1).tolist()
                self.notes[f"subgroup-{transport}"] = {"rank": exchange.rank, "rows": rows}
        else:
            self.notes["outsider"] = self.error_of(lambda: self.ep.Buffer(2, group))
        self.framework.barrier()

    def save(self) -> None:
        text = json.dumps(self.notes)
        (self.folder / f"notes.rank{self.number}.json").write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("framework")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    rank = Rank(options.framework, options.folder)
    for scenario in SCENARIOS.values():
        rank.run_scenario(scenario)
    rank.run_refusals()
    rank.run_all_to_all_v()
    rank.run_fallback()
    if rank.size > 2:
        rank.run_subgroup()
    rank.framework.barrier()
    rank.save()
    rank.framework.stop()


if __name__ == "__main__":
    main()
