"""Work folders: a run's own, gone at its end, swept when a run was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ci.pipeline.work_folders import sweep, work_folder
from ci.registry import REPOSITORY

HOLDER = """
import sys, time
from pathlib import Path
from ci.pipeline.work_folders import work_folder
with work_folder(Path(sys.argv[1]), "held") as folder:
    (folder / "file").write_text("x")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_a_folder_is_new_and_gone_afterwards(tmp_path: Path) -> None:
    with work_folder(tmp_path, "cell") as one, work_folder(tmp_path, "cell") as two:
        assert one != two
        assert one.parent == two.parent == tmp_path / "work"
        (one / "file").write_text("x")
    assert [path.name for path in (tmp_path / "work").iterdir()] == [".sweep.lock"]


def test_a_folder_is_gone_after_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="inside"), work_folder(tmp_path, "cell"):
        raise RuntimeError("inside")
    assert not [path for path in (tmp_path / "work").iterdir() if path.is_dir()]


def test_a_living_run_is_left_alone_and_a_killed_one_is_swept(tmp_path: Path) -> None:
    process = subprocess.Popen(
        (sys.executable, "-c", HOLDER, str(tmp_path)),
        stdout=subprocess.PIPE, text=True, cwd=REPOSITORY,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert (folder / "file").exists()
        assert sweep(tmp_path) == ()
        assert (folder / "file").exists()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert sweep(tmp_path) == (folder.name,)
    assert not folder.exists()
    assert sweep(tmp_path) == ()


def test_nothing_to_sweep_where_nobody_has_worked(tmp_path: Path) -> None:
    assert sweep(tmp_path / "absent") == ()
    assert not (tmp_path / "absent").exists()
