"""The multi-card check under the launchers of both frameworks."""

from __future__ import annotations

from pathlib import Path

import pytest
import ranks

CHECK = Path(__file__).with_name("multi_card") / "check_round_trip.py"
_LAUNCHERS = {
    "torch": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node={size}"],
    "paddle": [
        *("-m", "paddle.distributed.launch", "--nproc_per_node={size}"),
        *("--log_dir={folder}/log", "--master=127.0.0.1:{port}"),
    ],
}


def launch(framework: str, script: Path, size: int, folder: Path) -> ranks.RankResult:
    values = {"size": size, "folder": folder, "port": ranks.free_ports(1)[0]}
    command = [part.format(**values) for part in _LAUNCHERS[framework]]
    return ranks.run_launcher([*command, str(script)], folder, 120)


def everything_printed(result: ranks.RankResult, folder: Path) -> str:
    """Paddle's launcher shows rank 0 only; the others are in its log folder."""
    logs = sorted(folder.glob("log/workerlog.*"))
    return "\n".join([result.output, *(log.read_text(errors="replace") for log in logs)])


@pytest.mark.parametrize("size", [2, 3])
def test_round_trip_passes(framework: str, size: int, tmp_path: Path) -> None:
    result = launch(framework, CHECK, size, tmp_path)
    printed = everything_printed(result, tmp_path)
    assert result.status == 0, printed
    for rank in range(size):
        assert f"rank {rank} of {size}" in printed
    assert printed.count(": passed") >= size


def test_a_wrong_result_on_one_rank_fails_the_launcher(framework: str, tmp_path: Path) -> None:
    text = CHECK.read_text(encoding="utf-8")
    right = "np.testing.assert_array_equal(self.bits(out), x)"
    assert text.count(right) == 1
    spoilt = tmp_path / "spoilt.py"
    spoilt.write_text(text.replace(right, f"x[0, 0] ^= self.rank == 1\n            {right}"))
    result = launch(framework, spoilt, 2, tmp_path)
    printed = everything_printed(result, tmp_path)
    assert result.status != 0
    assert not result.timed_out
    assert "FAILED" in printed
    assert "Mismatched elements: 1 /" in printed


def test_a_single_rank_is_a_failure(framework: str, tmp_path: Path) -> None:
    result = launch(framework, CHECK, 1, tmp_path)
    assert result.status != 0
    assert "started as a single rank" in everything_printed(result, tmp_path)
