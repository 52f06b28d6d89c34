"""Starting processes: status, output, time limits, and that nothing is left running."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ci import proc
from ci.errors import ToolchainError
from ci.proc import Command, end_all, run, scrubbed

LONG = "600"  # seconds that a child would sleep if nobody ended it
WAIT = 20.0  # how long a test waits for something that should happen at once


def python(code: str, **named: object) -> Command:
    return Command((sys.executable, "-c", code), **named)  # type: ignore[arg-type]


def alive(pid: int) -> bool:
    """False for a process that is gone, or that only waits for its parent to read its status."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


# A parent that starts a sleeping child, tells its pid, and waits for it. A shell is there at once, so
# that a short time limit is enough on a busy machine as well.
FAMILY = f"sleep {LONG} & echo $!; wait"
STUBBORN_FAMILY = f"(trap '' TERM; exec sleep {LONG}) & echo $!; wait"
LIMIT = 1.5


def shell(code: str) -> Command:
    return Command(("sh", "-c", code), timeout=LIMIT)


@pytest.mark.parametrize("logged", [False, True])
@pytest.mark.parametrize("status", [0, 1, 77])
def test_the_exit_status_is_handed_on(tmp_path: Path, status: int, logged: bool) -> None:
    log = tmp_path / "deep" / "run.log" if logged else None
    done = run(python(f"print('all good'); raise SystemExit({status})"), log=log)
    assert done.returncode == status
    assert done.ok is (status == 0)
    assert not done.timed_out
    assert "all good" in done.output


def test_a_death_by_signal_is_a_negative_status() -> None:
    done = run(python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert done.returncode == -signal.SIGKILL
    assert not done.ok


def test_both_streams_come_in_order_and_odd_bytes_do_not_hurt(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "for n in range(3):\n"
        "    print('out', n, flush=True)\n"
        "    print('err', n, file=sys.stderr, flush=True)\n"
        "sys.stdout.buffer.write(b'\\xff\\n')\n"
    )
    expected = ["out 0", "err 0", "out 1", "err 1", "out 2", "err 2", "�"]
    assert run(python(code)).output.splitlines() == expected
    logged = run(python(code), log=tmp_path / "log")
    assert logged.output.splitlines()[-7:] == expected
    assert logged.tail(2) == ("err 2", "�")


def test_a_log_begins_with_the_command_and_holds_all_output(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    command = python("print('x' * 100_000); print('last')")
    done = run(command, log=log)
    first, *rest = log.read_text().splitlines()
    assert first == f"$ {command.shown}"
    assert rest == ["x" * 100_000, "last"]
    assert done.log == log
    assert done.tail(1) == ("last",)
    assert len(done.output) < 100_000


def test_a_log_is_written_anew(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("of an earlier run\n" * 1000)
    run(python("print('now')"), log=log)
    assert log.read_text().splitlines()[1:] == ["now"]


def test_a_command_is_shown_as_a_shell_would_take_it() -> None:
    command = python("print('a b')")
    done = run(Command(("sh", "-c", command.shown)))
    assert done.output == "a b\n"


def test_folder_and_environment_are_the_command_s(tmp_path: Path) -> None:
    code = "import os; print(os.getcwd()); print(sorted(os.environ))"
    done = run(python(code, cwd=tmp_path, env={"ONLY": "this"}))
    folder, names = done.output.splitlines()
    assert Path(folder) == tmp_path.resolve()
    assert "'ONLY'" in names
    assert "'HOME'" not in names


def test_no_environment_means_that_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THIS_PROCESS", "yes")
    assert run(python("import os; print(os.environ['OF_THIS_PROCESS'])")).output == "yes\n"


def test_a_child_that_asks_a_question_gets_no_answer() -> None:
    done = run(python("input('password: ')"))
    assert "EOFError" in done.output


@pytest.mark.parametrize("logged", [False, True])
def test_a_timeout_ends_the_whole_tree(tmp_path: Path, logged: bool) -> None:
    log = tmp_path / "run.log" if logged else None
    done = run(shell(FAMILY), log=log)
    assert done.timed_out
    assert not done.ok
    grandchild = int(done.output.split()[-1])
    assert eventually(lambda: not alive(grandchild))


def test_a_grandchild_that_ignores_the_request_is_killed() -> None:
    done = run(shell(STUBBORN_FAMILY))
    grandchild = int(done.output.split()[-1])
    assert eventually(lambda: not alive(grandchild))


@pytest.mark.timeout(9)
def test_a_grandchild_that_left_the_group_does_not_hold_up_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proc, "GRACE_SECONDS", 1.0)
    done = run(shell("setsid sh -c 'echo $$; exec sleep 20' & wait"))
    assert done.timed_out
    escaped = int(done.output)
    assert alive(escaped)
    os.kill(escaped, signal.SIGKILL)


def test_a_stopped_command_is_no_success_though_it_ends_with_status_0() -> None:
    done = run(shell(f"trap 'exit 0' TERM; echo ready; sleep {LONG} & wait"))
    assert done.output == "ready\n"
    assert (done.returncode, done.timed_out, done.ok) == (0, True, False)


@pytest.mark.parametrize(
    "argv",
    [("no-such-program-anywhere", "--version"), ("/no/such/folder/nvcc",)],
)
def test_a_missing_program_is_a_toolchain_error(argv: tuple[str, ...]) -> None:
    with pytest.raises(ToolchainError) as refused:
        run(Command(argv))
    assert argv[0] in refused.value.message
    assert refused.value.exit_code == 3
    assert "not installed" in refused.value.cause
    assert argv[0] in refused.value.next_step


@pytest.mark.parametrize(("mode", "content"), [(0o644, "#!/bin/sh\n"), (0o755, "\x7fELF no")])
def test_a_file_that_cannot_be_executed_is_a_toolchain_error(
    tmp_path: Path, mode: int, content: str
) -> None:
    program = tmp_path / "nvcc"
    program.write_text(content)
    program.chmod(mode)
    with pytest.raises(ToolchainError, match="cannot start"):
        run(Command((str(program),)), log=tmp_path / "log")


def test_a_missing_folder_is_told_as_one(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError) as refused:
        run(python("", cwd=tmp_path / "gone"))
    assert refused.value.cause == f"its folder is not there: {tmp_path / 'gone'}"


@pytest.mark.parametrize("logged", [False, True])
def test_an_interrupt_ends_the_child_before_it_is_handed_on(tmp_path: Path, logged: bool) -> None:
    mark = tmp_path / "pid"
    code = (
        "import os, time, pathlib\n"
        f"pathlib.Path({str(mark)!r}).write_text(str(os.getpid()))\n"
        f"time.sleep({LONG})"
    )

    def interrupt() -> None:
        if eventually(lambda: mark.exists() and bool(mark.read_text())):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(python(code), log=tmp_path / "log" if logged else None)
    thread.join()
    assert not alive(int(mark.read_text()))


def test_every_child_of_every_thread_can_be_ended(tmp_path: Path) -> None:
    code = "import os, time; print(os.getpid(), flush=True); " + f"time.sleep({LONG})"
    logs = [tmp_path / f"{number}.log" for number in range(3)]
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda log=log: statuses.append(run(python(code), log=log).returncode))
        for log in logs
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    started = [
        lambda log=log: log.exists() and len(log.read_text().splitlines()) > 1 for log in logs
    ]
    assert all(eventually(check) for check in started)
    pids = [int(log.read_text().splitlines()[1]) for log in logs]
    end_all()
    for thread in threads:
        thread.join(WAIT)
    assert statuses == [-signal.SIGTERM] * 3
    assert not any(alive(pid) for pid in pids)
    assert run(python("print('again')")).ok


@pytest.mark.parametrize(
    ("keep", "extra", "expected"),
    [
        (("PATH", "GONE"), {}, {"PATH": "/bin"}),
        ((), {"A": "1"}, {"A": "1"}),
        (("PATH",), {"PATH": "/toolchain"}, {"PATH": "/toolchain"}),
    ],
)
def test_a_scrubbed_environment_holds_what_is_named_and_nothing_else(
    keep: tuple[str, ...], extra: dict[str, str], expected: dict[str, str]
) -> None:
    base = {"PATH": "/bin", "TOKEN": "secret"}
    assert scrubbed(base, keep, **extra) == expected
    assert base == {"PATH": "/bin", "TOKEN": "secret"}
