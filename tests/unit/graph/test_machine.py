"""Looking at machines that are made of files: both versions of control groups, nested, and none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ci.graph.machine import LEAST_RESERVE, Fact, Machine, killed_for_memory, look, oom_kills

MIB = 1024**2
GIB = 1024**3
NO_LIMIT_V1 = "9223372036854771712"  # what version 1 says when there is none
V2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = (
    "30 23 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 30 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


def tree(root: Path, files: Mapping[str, str]) -> Path:
    """A machine with 64 GiB of which 32 are available, and ``files``."""
    memory = f"MemTotal: {64 * MIB} kB\nMemFree: {MIB} kB\nMemAvailable: {32 * MIB} kB\n"
    for name, text in {"proc/meminfo": memory, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_machine_without_control_groups(tmp_path: Path) -> None:
    seen = look(tree(tmp_path, {}), cpus=8)
    assert seen.cpus == Fact(8, "CPU affinity")
    assert seen.limit == Fact(64 * GIB, "MemTotal of /proc/meminfo")
    assert seen.available == Fact(32 * GIB, "MemAvailable of /proc/meminfo")
    assert (seen.pressure, seen.oom_kills, seen.pressed) == (None, None, False)


def test_version_2_with_the_tightest_limit_in_an_ancestor(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/jobs.slice"
    files = {
        "proc/self/mountinfo": V2,
        "proc/self/cgroup": "0::/jobs.slice/build.scope\n",
        f"{group}/memory.max": f"{10 * GIB}\n",
        f"{group}/memory.current": f"{7 * GIB}\n",
        f"{group}/memory.stat": f"anon 1\ninactive_file {2 * GIB}\nactive_file 5\n",
        f"{group}/cpu.max": "350000 100000\n",
        f"{group}/build.scope/memory.max": "max\n",
        f"{group}/build.scope/memory.current": f"{3 * GIB}\n",
        f"{group}/build.scope/memory.events": "low 0\nmax 9\noom 4\noom_kill 3\n",
        f"{group}/build.scope/memory.pressure": (
            "some avg10=42.50 avg60=1.00 avg300=0.00 total=5\nfull avg10=4.00 avg60=0 avg300=0 total=1\n"
        ),
        f"{group}/build.scope/cpu.max": "max 100000\n",
    }
    seen = look(tree(tmp_path, files), cpus=8)
    folder = tmp_path / group
    assert seen.cpus == Fact(3, str(folder / "cpu.max"))
    assert seen.limit == Fact(10 * GIB, str(folder / "memory.max"))
    assert seen.available == Fact(5 * GIB, str(folder / "memory.max"))
    assert seen.oom_kills == Fact(3, str(folder / "build.scope/memory.events"))
    assert seen.pressure is not None
    assert (seen.pressure.some, seen.pressure.full, seen.pressed) == (42.5, 4.0, True)
    assert seen.reserve == LEAST_RESERVE
    assert seen.free == 5 * GIB - LEAST_RESERVE


def test_version_1_where_the_leaf_is_tightest_and_no_limit_is_a_number(tmp_path: Path) -> None:
    memory, cpu = "sys/fs/cgroup/memory", "sys/fs/cgroup/cpu,cpuacct"
    files = {
        "proc/self/mountinfo": V1,
        "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n",
        f"{memory}/memory.limit_in_bytes": NO_LIMIT_V1,
        f"{memory}/memory.usage_in_bytes": f"{20 * GIB}",
        f"{memory}/docker/memory.limit_in_bytes": NO_LIMIT_V1,
        f"{memory}/docker/abc/memory.limit_in_bytes": f"{4 * GIB}",
        f"{memory}/docker/abc/memory.usage_in_bytes": f"{3 * GIB}",
        f"{memory}/docker/abc/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}\n",
        f"{memory}/docker/abc/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        f"{cpu}/docker/abc/cpu.cfs_quota_us": "50000",
        f"{cpu}/docker/abc/cpu.cfs_period_us": "100000",
        f"{cpu}/docker/cpu.cfs_quota_us": "-1",
        f"{cpu}/docker/cpu.cfs_period_us": "100000",
        "proc/pressure/memory": "some avg10=1.00 avg60=0 avg300=0 total=5\nfull avg10=0.50 total=1\n",
    }
    seen = look(tree(tmp_path, files), cpus=8)
    assert seen.limit == Fact(4 * GIB, str(tmp_path / memory / "docker/abc/memory.limit_in_bytes"))
    assert seen.available is not None
    assert seen.available.value == 2 * GIB
    assert seen.cpus.value == 1  # half a CPU is one job
    assert seen.oom_kills is not None
    assert seen.oom_kills.value == 2
    assert seen.pressure is not None
    assert (seen.pressure.source, seen.pressed) == (str(tmp_path / "proc/pressure/memory"), False)


def test_both_versions_at_once(tmp_path: Path) -> None:
    """systemd's hybrid: controllers in version 1, version 2 for names only."""
    files = {
        "proc/self/mountinfo": V1 + "38 30 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        "proc/self/cgroup": "5:memory:/a\n0::/a\n",
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{2 * GIB}",
        "sys/fs/cgroup/memory/a/memory.usage_in_bytes": f"{GIB}",
        "sys/fs/cgroup/memory/a/memory.oom_control": "oom_kill 1\n",
        "sys/fs/cgroup/unified/a/cgroup.procs": "1\n",
    }
    seen = look(tree(tmp_path, files), cpus=2)
    assert seen.limit is not None
    assert seen.available is not None
    assert (seen.limit.value, seen.available.value) == (2 * GIB, GIB)
    assert oom_kills(tmp_path) == 1


def test_a_limit_of_an_ancestor_that_cannot_be_seen(tmp_path: Path) -> None:
    files = {
        "proc/self/mountinfo": V1.replace("0:32 / ", "0:32 /docker/abc "),
        "proc/self/cgroup": "5:memory:/docker/abc/inner\n",
        "sys/fs/cgroup/memory/inner/memory.limit_in_bytes": NO_LIMIT_V1,
        "sys/fs/cgroup/memory/inner/memory.stat": f"hierarchical_memory_limit {3 * GIB}\n",
    }
    seen = look(tree(tmp_path, files), cpus=2)
    assert seen.limit is not None
    assert seen.limit.value == 3 * GIB
    assert seen.limit.source.startswith("hierarchical_memory_limit of ")


def test_a_container_that_sees_only_its_own_group(tmp_path: Path) -> None:
    files = {
        "proc/self/mountinfo": V2.replace("/sys/fs/cgroup", "/sys/fs/c\\040group"),
        "proc/self/cgroup": "0::/../../outside\n",
        "sys/fs/c group/memory.max": f"{GIB}",
        "sys/fs/c group/memory.current": f"{2 * GIB}",
    }
    seen = look(tree(tmp_path, files), cpus=2)
    assert seen.available is not None
    assert seen.available.value == 0  # used more than it may: nothing is left, not less
    assert seen.free == -LEAST_RESERVE


def test_files_that_nobody_understands_say_nothing(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: lots\n\x00",
        "proc/self/mountinfo": "not a mount\n1 2 3 - cgroup2\n" + V2,
        "proc/self/cgroup": "0::/\nnonsense\n::\n",
        "sys/fs/cgroup/memory.max": "-5",
        "sys/fs/cgroup/memory.current": "many",
        "sys/fs/cgroup/cpu.max": "100000",
        "sys/fs/cgroup/memory.pressure": "some avg10=\n",
        "proc/vmstat": "oom_kill x\n",
    }
    assert look(tree(tmp_path, files), cpus=4) == Machine(Fact(4, "CPU affinity"))


def test_the_counter_of_the_machine_where_a_group_has_none(tmp_path: Path) -> None:
    tree(tmp_path, {"proc/vmstat": "nr_free_pages 5\noom_kill 12\n"})
    assert oom_kills(tmp_path) == 12
    assert look(tmp_path, cpus=1).oom_kills == Fact(12, "/proc/vmstat")


def test_a_large_machine_keeps_a_share_back(tmp_path: Path) -> None:
    seen = look(tree(tmp_path, {}), cpus=1)
    assert seen.reserve == int(64 * GIB * 0.05)


def test_this_machine() -> None:
    seen = look()
    with Path("/proc/meminfo").open() as lines:
        total = int(next(line for line in lines if line.startswith("MemTotal")).split()[1]) * 1024
    assert seen.limit is not None
    assert seen.available is not None
    assert 0 < seen.available.value <= seen.limit.value <= total
    assert 1 <= seen.cpus.value <= len(os.sched_getaffinity(0))


GCC = "c++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n"
NVCC = "nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n"
SHELL = "build.sh: line 3: 4711 Killed                  ptxas -o k.o k.ptx\n"


@pytest.mark.parametrize(
    ("code", "text", "before", "after", "said"),
    [
        (1, GCC, 0, 1, "cc1plus was killed by the kernel for memory"),
        (255, NVCC, 3, 5, "cicc was killed by the kernel for memory (2 killed meanwhile)"),
        (1, SHELL, 0, 1, "ptxas was killed by the kernel"),
        (-9, "", 0, 1, "the build was killed by the kernel"),
        (137, "", 0, 1, "the build was killed by the kernel"),
        (1, GCC, None, None, "cc1plus was killed, most likely for memory: c++: fatal error"),
        (
            2,
            "collect2: fatal error: ld terminated with signal 9 [Killed]",
            None,
            1,
            "ld was killed",
        ),
        (
            1,
            "cc1plus: out of memory allocating 65536 bytes after a total of 9 bytes",
            0,
            0,
            "refused",
        ),
        (
            1,
            "virtual memory exhausted: Cannot allocate memory",
            0,
            0,
            "memory was refused: virtual",
        ),
        (1, "terminate called after throwing an instance of 'std::bad_alloc'\n", 0, 0, "bad_alloc"),
        (1, "LLVM ERROR: out of memory\nAllocation failed", None, None, "LLVM ERROR"),
        (1, "ptxas fatal   : Memory allocation failure", None, None, "ptxas fatal"),
        (1, "OSError: [Errno 12] Cannot allocate memory", None, None, "Errno 12"),
        (1, "Traceback:\nMemoryError\n", 0, 0, "MemoryError"),
    ],
)
def test_what_shows_that_memory_was_the_reason(
    code: int, text: str, before: int | None, after: int | None, said: str
) -> None:
    assert said in killed_for_memory(code, text, before, after)


@pytest.mark.parametrize(
    ("code", "text", "before", "after"),
    [
        (0, GCC, 0, 1),  # it succeeded
        (-9, "", 4, 4),  # somebody else sent the signal
        (-9, "", None, None),  # nobody can say
        (1, GCC, 4, 4),
        (-15, "", 0, 1),
        (1, "a.cpp:3: error: expected ';'", 0, 1),  # another process of the group was killed
        (1, "a.cpp:3:10: note: catch (const std::bad_alloc& error)", 0, 0),
        (1, "Killed by the cat in line 9\nnot Killed", 0, 1),
        (1, "// Cannot allocate memory is handled", 0, 0),
    ],
)
def test_what_does_not(code: int, text: str, before: int | None, after: int | None) -> None:
    assert killed_for_memory(code, text, before, after) == ""


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of 64 MiB beside this process's own, where the machine permits one."""
    own = next(
        (
            line.split(":", 2)
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if "memory" in line or line.startswith("0::")
        ),
        None,
    )
    if own is None:
        pytest.skip("there are no control groups here")
    v1 = "memory" in own[1]
    base = Path("/sys/fs/cgroup/memory" if v1 else "/sys/fs/cgroup")
    folder = base / f"farm-test-{uuid.uuid4().hex}"
    try:
        folder.mkdir()
        limit = folder / ("memory.limit_in_bytes" if v1 else "memory.max")
        limit.write_text(str(64 * MIB))
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    yield folder
    folder.rmdir()


HUNGRY = """
import os, sys
from pathlib import Path
from ci.graph.machine import killed_for_memory, look, oom_kills
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
seen = look()
print(int(seen.limit.value), seen.limit.source, int(seen.available.value))
before = oom_kills()
child = os.fork()
if not child:
    bytearray(200 * 2**20)
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(status, killed_for_memory(status, "", before, oom_kills()))
child = os.fork()
if not child:
    os.kill(os.getpid(), 9)
before = oom_kills()
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(status, [killed_for_memory(status, "", before, oom_kills())])
"""


def test_a_process_that_the_kernel_really_kills_for_memory(small_group: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HUNGRY, str(small_group)], capture_output=True, text=True, check=True
    )
    limit, killed, signalled = done.stdout.splitlines()
    assert limit.split()[0] == str(64 * MIB)
    assert limit.split()[1].startswith(str(small_group))
    assert killed == "-9 the build was killed by the kernel for memory (1 killed meanwhile)"
    assert signalled == "-9 ['']"


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ on this machine")
def test_a_compiler_that_is_refused_memory_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text('#include <regex>\nstd::regex r("a");\n')
    command = f"ulimit -v 60000; g++ -O2 -c {tmp_path}/a.cpp -o {tmp_path}/a.o"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "memory was refused" in killed_for_memory(done.returncode, done.stderr, 0, 0), (
        done.stderr
    )
