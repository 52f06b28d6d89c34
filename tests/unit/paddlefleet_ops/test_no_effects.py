"""Importing the package starts no process, runs no nvcc and writes nothing; the interpreter's audit says so.

With Paddle itself, and by phases: what ``import paddle`` does is told from what the package does. Source of
the events: Python's documentation, "Audit events table".
"""

from __future__ import annotations

import importlib.util

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("paddle") is None,
    reason="Paddle is not installed here: pip install paddlepaddle==3.3.1",
)

AUDIT = """
import os, sys, warnings
warnings.simplefilter("ignore")
phase, seen = "start", []
PROCESSES = {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork", "os.forkpty",
             "os.spawn", "os.startfile", "pty.spawn"}
WRITES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate",
          "os.chmod", "os.chown", "os.utime", "tempfile.mkstemp", "tempfile.mkdtemp", "shutil.rmtree",
          "shutil.copyfile", "shutil.move", "socket.connect", "ctypes.dlopen"}
def hook(event, arguments):
    if event in PROCESSES or event in WRITES:
        seen.append([phase, event, repr(arguments)[:200]])
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & (
            os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND):
        seen.append([phase, "open for writing", str(arguments[0])])
sys.addaudithook(hook)
phase = "paddle"
import paddle
phase = "guard"
with paddle.use_compat_guard(scope={"nothing"}, silent=True):
    pass
phase = "package"
import paddlefleet_ops as ops
phase = "use"
[ops.is_alpha_available(), ops.libraries(), dir(ops), hasattr(ops, "gated")]
try:
    import paddlefleet_ops.gated
except RuntimeError:
    pass
import paddlefleet_ops.alpha.late
phase = "control"
open(os.devnull, "w").close()
os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", ""])
states = [state.state for state in ops.libraries()]
result = [seen, states]
"""

TRAP = "#!/bin/sh\necho \"$0\" >> '{marker}'\necho 'release 12.6'\n"


@pytest.mark.parametrize("gpu", [False, True])
def test_nothing_is_started_and_nothing_is_written(site, tmp_path, gpu):
    site.add("alpha", {"alpha/__init__.py": "import torch\n", "alpha/late.py": ""})
    site.add("broken", {"broken.py": "import torch\n1 / 0\n"})
    site.add("gated", {"gated.py": ""}, cuda=">=99", python=">=3.99", capability=">=9.0")
    marker, traps = tmp_path / "was_run", tmp_path / "traps"
    traps.mkdir()
    for name in ("nvcc", "nvidia-smi", "ldconfig", "cuobjdump"):
        (traps / name).write_text(TRAP.format(marker=marker))
        (traps / name).chmod(0o755)
    code = AUDIT
    if gpu:  # a build for CUDA, on a host whose driver fails: what it is asked may raise anything
        code = code.replace('phase = "guard"\n', FAILING_DRIVER + 'phase = "guard"\n')
    seen, states = site.result(
        code,
        stand_in=False,
        PADDLEFLEET_OPS_ON_ERROR="block",
        PYTHONDONTWRITEBYTECODE="1",
        PATH=str(traps),
    )
    assert states == ["loaded", "failed", "blocked"]
    assert [event for event in seen if event[0] in ("guard", "package", "use")] == []
    control = [event[1] for event in seen if event[0] == "control"]
    assert "open for writing" in control  # the audit does see such things
    assert {"os.posix_spawn", "os.fork", "os.exec"} & set(control)
    if marker.exists():  # `import paddle` may look for tools; then its phase has the process
        assert [event for event in seen if event[0] == "paddle" and event[1] == "subprocess.Popen"]


FAILING_DRIVER = """
def fails(*_):
    raise SystemError("(External) CUDA error(999), unknown error")
paddle.version.cuda = lambda: "13.0"
paddle.device.cuda.device_count = fails
paddle.device.cuda.get_device_capability = fails
"""


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ("paddle.device.cuda.device_count = lambda: 0", "no CUDA device was found"),
        (FAILING_DRIVER, "asking the CUDA device failed: SystemError: (External) CUDA error(999)"),
        (
            "paddle.device.cuda.device_count = lambda: 1\n"
            "paddle.device.cuda.get_device_capability = lambda: None",
            "asking the CUDA device failed: TypeError",
        ),
        (
            "paddle.device.cuda.device_count = lambda: 1\n"
            "paddle.device.cuda.get_device_capability = lambda: ('MIG', '1g.18gb')",
            "asking the CUDA device failed: ValueError",
        ),
        (
            "paddle.device.cuda.device_count = lambda: None",
            "asking the CUDA device failed: TypeError",
        ),
        ("paddle.device.cuda = None", "asking the CUDA device failed: AttributeError"),
    ],
)
def test_a_capability_that_cannot_be_had_is_a_reason(site, answers, reason):
    site.add("gated", {"gated.py": ""}, capability=">=9.0")
    site.add("alpha", {"alpha.py": "import torch\n"})
    code = (
        f"import paddle\npaddle.version.cuda = lambda: '13.0'\n{answers}\nimport paddlefleet_ops as ops\n"
        "result = [ops.is_alpha_available(), ops.blocked_import_messages['paddlefleet_ops.gated']]\n"
    )
    available, message = site.result(code, stand_in=False)
    assert available is True
    assert f"needs compute capability >=9.0; {reason}" in message


@pytest.mark.parametrize(
    ("cuda", "reason"),
    [
        ("lambda: 'False'", "this Paddle was built without CUDA"),
        ("lambda: None", "this Paddle was built without CUDA"),
        ("lambda: 1 / 0", "asking Paddle for its CUDA version failed: ZeroDivisionError: division"),
        ("lambda: 'twelve'", "asking Paddle for its CUDA version failed: ValueError: "),
        ("None", "asking Paddle for its CUDA version failed: TypeError: "),
    ],
)
def test_a_cuda_version_that_cannot_be_had_is_a_reason(site, cuda, reason):
    site.add("gated", {"gated.py": ""}, cuda=">=12.6")
    message = site.result(
        f"import paddle\npaddle.version.cuda = {cuda}\nimport paddlefleet_ops as ops\n"
        "result = ops.blocked_import_messages['paddlefleet_ops.gated']\n",
        stand_in=False,
    )
    assert f"needs CUDA >=12.6; {reason}" in message
