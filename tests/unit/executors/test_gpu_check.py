from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from ci.errors import InfrastructureError
from ci.executors.gpu_check import (
    PROBE,
    GpuFact,
    GpuProbe,
    GpuProblem,
    MigFact,
    judge_gpus,
    probe_command,
    read_probe,
    require_gpus,
)
from ci.executors.gpu_probe import KINDS, MARK, read_program
from ci.executors.model import GpuRequest
from ci.proc import run
from tests.unit.executors.fake_nvml import FIRST, PARTS, SECOND, compile_library

GIB = 1024**3
T = TypeVar("T")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("driver"))


def probed(
    env: Mapping[str, str], *, seconds: float = 20, python: str = sys.executable
) -> GpuProbe:
    command = probe_command(GpuRequest(("0", "1")), python=python, seconds=seconds)
    done = run(replace(command, env={"PATH": "/usr/bin:/bin", **env}))
    assert not done.timed_out
    probe = read_probe(done.output)
    assert done.ok == (bool(probe.devices) and not probe.problems)
    return probe


def seen(*uuids: str, **changes: object) -> GpuProbe:
    devices = tuple(
        GpuFact(index, uuid, "NVIDIA H200", 140 * GIB, 139 * GIB, "9.0")
        for index, uuid in enumerate(uuids)
    )
    plain = GpuProbe("nvml", "580.65.06", "13.0", devices, (), ("/dev/nvidia0",), {})
    return replace(plain, **changes)  # type: ignore[arg-type]


def asked(*devices: str) -> GpuRequest:
    return GpuRequest(devices)


def rules(request: GpuRequest, probe: GpuProbe, *, memory: int = 0, cuda: str = "") -> list[str]:
    return [item.rule for item in judge_gpus(request, probe, memory=memory, cuda=cuda)]


# The program, against a library that is not the farm's


def test_the_probe_reads_the_library(library: Path) -> None:
    visible = {"NVIDIA_VISIBLE_DEVICES": "0,3", "CUDA_VISIBLE_DEVICES": "0,1"}
    probe = probed({"LD_LIBRARY_PATH": str(library), **visible})
    assert (probe.source, probe.driver, probe.cuda_driver) == ("nvml", "580.65.06", "13.0")
    assert probe.devices == (
        GpuFact(0, FIRST, "NVIDIA H200", 150_000_000_000, 149_000_000_000, "9.0"),
        GpuFact(1, SECOND, "NVIDIA H200 NVL", 150_000_000_000, 20_000_000_000, "10.0"),
    )
    assert probe.visible == visible
    assert judge_gpus(asked("0", "3"), probe, memory=20_000_000_000, cuda="13.0") == ()


def test_the_parts_of_a_partitioned_gpu(library: Path) -> None:
    probe = probed({"LD_LIBRARY_PATH": str(library), "FAKE_NVML_MIG": "1"})
    assert [part.uuid for part in probe.devices[0].mig] == list(PARTS)
    assert probe.devices[0].mig[1].memory_free == 73_000_000_000
    assert probe.devices[1].mig == ()


def test_without_the_library_the_probe_says_so(tmp_path: Path) -> None:
    probe = probed({"LD_LIBRARY_PATH": str(tmp_path)})
    assert [item.kind for item in probe.problems] == ["no-library"]
    assert "libnvidia-ml.so.1" in probe.problems[0].text


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    probe = probed({"LD_LIBRARY_PATH": str(tmp_path)})
    assert [item.kind for item in probe.problems] == ["bad-library"]


def test_a_library_of_something_else(tmp_path: Path) -> None:
    source = tmp_path / "empty.c"
    source.write_text("int nothing;")
    target = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(("gcc", "-shared", "-fPIC", "-o", str(target), str(source)), check=True)
    probe = probed({"LD_LIBRARY_PATH": str(tmp_path)})
    assert [item.kind for item in probe.problems] == ["bad-library"]
    assert "nvmlInit_v2" in probe.problems[0].text


@pytest.mark.parametrize(
    ("code", "kind"),
    [(18, "mismatch"), (9, "not-loaded"), (999, "lost"), (15, "lost"), (4, "blocked"), (17, "blocked"),
     (3, "failed"), (12, "no-library")],
)  # fmt: skip
def test_return_codes_of_the_library(library: Path, code: int, kind: str) -> None:
    probe = probed({"LD_LIBRARY_PATH": str(library), "FAKE_NVML_INIT": str(code)})
    assert [item.kind for item in probe.problems] == [kind]
    assert f"(code {code})" in probe.problems[0].text
    assert probe.devices == ()


def test_a_lost_gpu_does_not_hide_the_other(library: Path) -> None:
    probe = probed({"LD_LIBRARY_PATH": str(library), "FAKE_NVML_LOST": "0"})
    assert [gpu.uuid for gpu in probe.devices] == [SECOND]
    assert [item.kind for item in probe.problems] == ["lost"]
    assert probe.problems[0].text.startswith("GPU 0: ")


def test_a_library_that_hangs_is_given_up(library: Path) -> None:
    started = time.monotonic()
    probe = probed({"LD_LIBRARY_PATH": str(library), "FAKE_NVML_HANGS": "1"}, seconds=1)
    assert time.monotonic() - started < 10
    assert [item.kind for item in probe.problems] == ["hangs"]


def test_a_probe_that_is_killed_leaves_no_hanging_child(library: Path) -> None:
    process = subprocess.Popen(
        (sys.executable, "-I", str(PROBE), "50"),
        env={"LD_LIBRARY_PATH": str(library), "FAKE_NVML_HANGS": "1"},
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    child = _once(lambda: children.read_text("ascii").strip())
    # Not before it hangs in the library, which it has then loaded.
    _once(lambda: "libnvidia-ml" in Path(f"/proc/{child}/maps").read_text("ascii"))
    process.kill()
    process.wait()
    _once(lambda: not _lives(child))


def _lives(pid: str) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text("ascii")
    except OSError:
        return False


def _once(condition: Callable[[], T]) -> T:
    """What ``condition`` says once that is true, within ten seconds."""
    end = time.monotonic() + 10
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


@pytest.mark.parametrize("when", ["FAKE_NVML_DIES", "FAKE_NVML_DIES_LAST"])
def test_a_library_that_crashes(library: Path, when: str) -> None:
    """Even with an answer before it: the status outranks it."""
    probe = probed({"LD_LIBRARY_PATH": str(library), when: "1"})
    assert probe.devices == ()
    assert [item.kind for item in probe.problems] == ["bad-library"]
    assert "status -6" in probe.problems[0].text


def smi(folder: Path, script: str) -> dict[str, str]:
    """The environment of a container whose ``nvidia-smi`` is ``script``, without the library."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


ROW = f"0, {FIRST}, NVIDIA H200, 143771, 143013, 9.0, 580.65.06"


def test_nvidia_smi_is_asked_when_the_library_cannot_be(tmp_path: Path) -> None:
    probe = probed(smi(tmp_path, f"echo '{ROW}'"))
    assert (probe.source, probe.driver, probe.problems) == ("nvidia-smi", "580.65.06", ())
    assert probe.devices == (
        GpuFact(0, FIRST, "NVIDIA H200", 143771 * 1024**2, 143013 * 1024**2, "9.0"),
    )


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("Failed to initialize NVML: Unknown Error", "lost"),
        ("Failed to initialize NVML: Driver/library version mismatch", "mismatch"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            "not-loaded",
        ),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", "no-library"),
        ("something new", "failed"),
    ],
)
def test_what_nvidia_smi_says_is_kept_beside_what_the_library_says(
    tmp_path: Path, words: str, kind: str
) -> None:
    probe = probed(smi(tmp_path, f'echo "{words}"; exit 9'))
    assert [item.kind for item in probe.problems] == ["no-library", kind]
    assert words in probe.problems[1].text


def test_a_hanging_nvidia_smi_is_given_up_with_its_children(tmp_path: Path) -> None:
    started = time.monotonic()
    probe = probed(smi(tmp_path, f"sleep 60 & echo $! > {tmp_path}/child; wait"), seconds=1)
    assert time.monotonic() - started < 10
    child = (tmp_path / "child").read_text("ascii").strip()
    _once(lambda: not _lives(child))
    assert [item.kind for item in probe.problems] == ["no-library", "hangs"]


def test_a_row_of_nvidia_smi_without_memory_is_a_problem_not_a_gpu() -> None:
    answer = read_program(f"{ROW}\n1, {SECOND}, NVIDIA GB10, [N/A], [N/A], 12.1, 580.65.06\n")
    assert [device["uuid"] for device in answer["devices"]] == [FIRST]  # type: ignore[attr-defined]
    assert "GB10" in answer["problems"][0]["text"]  # type: ignore[index]


def test_the_probe_runs_by_itself(tmp_path: Path, library: Path) -> None:
    """The container need not have the farm: one file and Python, whatever lies beside it."""
    shutil.copy(PROBE, tmp_path / "gpu_probe.py")
    (tmp_path / "json.py").write_text("raise SystemExit('a file beside the probe was imported')")
    command = probe_command(asked("0"), python=sys.executable)
    argv = (*command.argv[:-2], str(tmp_path / "gpu_probe.py"), "20")
    done = run(replace(command, argv=argv, env={"LD_LIBRARY_PATH": str(library)}, cwd=tmp_path))
    assert len(read_probe(done.output).devices) == 2
    by_hand = subprocess.run(
        (sys.executable, str(PROBE)), env={**os.environ, "LD_LIBRARY_PATH": str(library)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert len(read_probe(by_hand.stdout).devices) == 2


def test_the_command_has_time_for_the_probe_and_for_the_container() -> None:
    command = probe_command(asked("0", "3"), seconds=5)
    assert command.argv == ("/opt/farm/bin/python", "-I", str(PROBE), "5")
    assert command.timeout is not None
    assert command.timeout > 5
    assert "0, 3" in command.label


# Reading


def test_lines_around_the_answer_do_not_matter(library: Path) -> None:
    done = run(
        replace(
            probe_command(asked("0"), python=sys.executable), env={"LD_LIBRARY_PATH": str(library)}
        )
    )
    banner = f"==========\n== CUDA ==\n==========\n{MARK}is the line to read\n"
    assert read_probe(banner + done.output + "\na last word\n") == read_probe(done.output)


@pytest.mark.parametrize(
    "answer",
    [
        "null", "[]", "{}", '{"source": "nvml", "devices": 3}', "{broken",
        '{"source":"nvml","devices":[{"index":"x"}],"problems":[],"nodes":[],"visible":{}}',
        '{"source":"nvml","devices":[],"problems":[1],"nodes":[],"visible":{}}',
        '{"source":"nvml","devices":[],"problems":[],"nodes":[],"visible":[]}',
    ],
)  # fmt: skip
def test_an_answer_of_another_shape_is_none(answer: str) -> None:
    with pytest.raises(InfrastructureError, match="gave no answer"):
        read_probe(MARK + answer)


def test_no_answer_shows_what_was_printed_instead() -> None:
    with pytest.raises(InfrastructureError) as caught:
        read_probe("exec /opt/farm/bin/python: no such file or directory\n")
    assert caught.value.details == ("exec /opt/farm/bin/python: no such file or directory",)
    assert caught.value.exit_code == 4


def test_no_answer_because_the_engine_has_no_runtime() -> None:
    words = (
        'Error response from daemon: could not select device driver "" with capabilities: [[gpu]]'
    )
    with pytest.raises(InfrastructureError, match="could not select device driver") as caught:
        read_probe(words)
    assert "toolkit is not installed" in caught.value.cause


# Judging


def test_what_was_asked_for_and_nothing_else() -> None:
    require_gpus(asked("0", "3"), seen(FIRST, SECOND), memory=100 * GIB, cuda="13.0")
    require_gpus(asked(SECOND, FIRST), seen(FIRST, SECOND), cuda="12.6")
    require_gpus(asked("0", SECOND), seen(FIRST, SECOND))


@pytest.mark.parametrize(
    ("request_", "there", "expected"),
    [
        (asked("0", "1"), (FIRST,), ["gpu-count"]),
        (asked("0"), (FIRST, SECOND), ["gpu-count"]),
        (asked("0"), (), ["gpu-count"]),
        (asked(FIRST), (SECOND,), ["gpu-missing", "gpu-not-asked"]),
        (asked(FIRST), (FIRST, SECOND), ["gpu-not-asked"]),
        (asked(FIRST, SECOND), (FIRST,), ["gpu-missing"]),
        (asked("0", SECOND), (FIRST, "GPU-x"), ["gpu-missing"]),
        (asked("0", SECOND), (FIRST,), ["gpu-missing"]),
        (asked("0", FIRST), (FIRST,), ["gpu-count"]),
    ],
)
def test_other_devices_than_asked(
    request_: GpuRequest, there: tuple[str, ...], expected: list[str]
) -> None:
    assert rules(request_, seen(*there)) == expected


def partitioned(*parts: str) -> GpuProbe:
    whole = GpuFact(0, FIRST, "NVIDIA H200", 140 * GIB, 100 * GIB, "9.0")
    mig = tuple(MigFact(uuid, 70 * GIB, 69 * GIB) for uuid in parts)
    return seen(devices=(replace(whole, mig=mig),))


def test_parts_are_counted_when_parts_were_asked_for() -> None:
    one, other = PARTS
    assert rules(asked(one), partitioned(one)) == []
    assert rules(asked(one), partitioned(one, other)) == ["gpu-not-asked"]
    assert rules(asked(one, other), partitioned(one)) == ["gpu-missing"]
    assert rules(asked("0:0", "0:1"), partitioned(one, other)) == []
    assert rules(asked("0:0"), partitioned(one, other)) == ["gpu-count"]
    assert rules(asked("0"), partitioned(one, other)) == []
    assert rules(asked(FIRST), partitioned(one, other)) == []
    assert rules(asked(FIRST, one), partitioned(one, other)) == []


def test_free_memory_of_each_device() -> None:
    full = replace(seen(FIRST).devices[0], memory_free=2 * GIB)
    probe = seen(FIRST, SECOND, devices=(full, seen(FIRST, SECOND).devices[1]))
    (finding,) = judge_gpus(asked("0", "1"), probe, memory=20 * GIB)
    assert finding.rule == "gpu-memory"
    assert finding.place == FIRST
    assert "2.0 GiB of 140.0 GiB free, 20.0 GiB are needed" in finding.why
    assert rules(asked("0", "1"), probe) == []
    assert rules(asked(PARTS[0]), partitioned(PARTS[0]), memory=80 * GIB) == ["gpu-memory"]


@pytest.mark.parametrize(
    ("driver", "cuda_driver", "cuda", "fits"),
    [
        ("580.65.06", "13.0", "13.0", True),
        ("580.65.06", "13.0", "13.1", True),  # minor version compatibility
        ("580.65.06", "13.0", "12.6", True),
        ("575.57.08", "12.9", "13.0", False),
        ("525.60.13", "12.0", "12.9", True),
        ("520.61.05", "11.8", "12.6", False),
        ("535.129.03", "13.0", "13.0", True),  # a compatibility package in the image
        ("580.65.06", "", "13.0", True),
        ("580.65.05", "", "13.0", False),
        ("590.44", "", "13.0", True),
        ("525.60.13", "", "12.6", True),
        ("525.53", "", "12.6", False),
        ("", "13.0", "13.0", True),
        ("", "12.9", "13.0", False),
        ("610.10", "", "14.0", False),
        ("650.10", "14.0", "14.0", True),
    ],
)
def test_drivers_and_cuda(driver: str, cuda_driver: str, cuda: str, fits: bool) -> None:
    probe = seen(FIRST, driver=driver, cuda_driver=cuda_driver)
    assert rules(asked("0"), probe, cuda=cuda) == ([] if fits else ["gpu-driver-old"])


def test_an_old_driver_is_named_with_the_one_that_is_needed() -> None:
    probe = seen(FIRST, driver="550.54.15", cuda_driver="12.4")
    (finding,) = judge_gpus(asked("0"), probe, cuda="13.0")
    assert finding.why == (
        "CUDA 13.0 needs driver 580.65.06 or newer; the host has 550.54.15, which serves CUDA up to 12.4"
    )


@pytest.mark.parametrize(
    ("value", "hidden"),
    [("0,1", False), ("1,0", False), (f"{SECOND},{FIRST[:12]}", False), ("2,3", True), ("", True),
     ("-1", True), ("0,3", True), ("3,0", True), ("0", True), ("NoDevFiles", True), ("GPU-9,0,1", True)],
)  # fmt: skip
def test_a_list_of_the_host_s_indices_hides_devices(value: str, hidden: bool) -> None:
    probe = seen(FIRST, SECOND, visible={"CUDA_VISIBLE_DEVICES": value})
    assert rules(asked("0", "3"), probe) == (["gpu-hidden"] if hidden else [])


def without_driver(**visible: str) -> GpuProbe:
    text = "libnvidia-ml.so.1: cannot open shared object file: No such file or directory"
    return seen(
        driver="",
        cuda_driver="",
        nodes=(),
        visible=visible,
        problems=(GpuProblem("no-library", text),),
    )


def test_an_engine_that_ignored_the_request() -> None:
    for visible in ({}, {"NVIDIA_VISIBLE_DEVICES": "all"}):
        with pytest.raises(InfrastructureError) as caught:
            require_gpus(asked("0", "3"), without_driver(**visible), cuda="13.0")
        assert "the engine ignored the request, as podman does" in caught.value.cause
        assert "nvidia-ctk cdi generate" in caught.value.next_step
        assert caught.value.exit_code == 4
        assert "(0, 3)" in caught.value.message
        assert len(caught.value.details) == 1


def test_a_runtime_that_brought_no_driver_in() -> None:
    (finding,) = judge_gpus(asked("0", "3"), without_driver(NVIDIA_VISIBLE_DEVICES="0,3"))
    assert "brought no driver in" in finding.why


@pytest.mark.parametrize(
    ("nodes", "visible"),
    [(("/dev/nvidia0", "/dev/nvidiactl"), {}), ((), {"NVIDIA_VISIBLE_DEVICES": "void"})],
)
def test_devices_without_the_library(nodes: tuple[str, ...], visible: dict[str, str]) -> None:
    (finding,) = judge_gpus(asked("0"), replace(without_driver(**visible), nodes=nodes))
    assert "without the driver library" in finding.why


@pytest.mark.parametrize("kind", KINDS)
def test_every_problem_of_the_probe_has_a_cause_and_a_next_step(kind: str) -> None:
    probe = seen(problems=(GpuProblem(kind, "what the driver said"),))
    (finding,) = judge_gpus(asked("0"), probe)
    assert finding.rule == f"gpu-{kind}"
    assert "what the driver said" in finding.why
    assert finding.mend


def test_all_is_told_at_once() -> None:
    probe = seen(FIRST, driver="535.10", cuda_driver="12.2")
    with pytest.raises(InfrastructureError) as caught:
        require_gpus(asked("0", "1"), probe, memory=200 * GIB, cuda="13.0")
    told = [line.partition(":")[0] for line in caught.value.details]
    assert told == ["gpu-count", "gpu-memory", "gpu-driver-old"]


def test_the_answer_of_the_probe_is_one_line_of_json(library: Path) -> None:
    done = subprocess.run(
        (sys.executable, "-I", str(PROBE), "20"), env={"LD_LIBRARY_PATH": str(library)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (line,) = done.stdout.splitlines()
    assert json.loads(line.removeprefix(MARK))["driver"] == "580.65.06"
