"""The shared library itself, and how it runs inside a framework."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import frameworks
import numpy as np
import oracle
import pytest


def _library(framework: Any) -> Path:
    return Path(framework.operators._library.LIBRARY)


def _readelf(option: str, path: Path) -> str:
    tool = shutil.which("readelf")
    if tool is None:
        pytest.skip("readelf (binutils) is not installed")
    return subprocess.run(
        [tool, "-W", option, str(path)], check=True, capture_output=True, text=True
    ).stdout


def test_needs_no_python_framework_or_cuda_library(framework: Any) -> None:
    needed = set(re.findall(r"NEEDED.*\[(.+)\]", _readelf("-d", _library(framework))))
    system = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libdl.so.2"}
    system |= {"libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
    assert "libtvm_ffi.so" in needed
    assert needed - system == {"libtvm_ffi.so"}


def test_has_no_search_path_and_no_version_of_python_in_its_name(framework: Any) -> None:
    assert not re.search(r"\((RPATH|RUNPATH)\)", _readelf("-d", _library(framework)))
    assert _library(framework).name == "libfused_norm.so"


def test_shows_only_its_own_functions(framework: Any) -> None:
    lines = [line.split() for line in _readelf("--dyn-syms", _library(framework)).splitlines()]
    rows = [row for row in lines if len(row) >= 8 and row[4] in ("GLOBAL", "WEAK", "UNIQUE")]
    defined = {row[7] for row in rows if row[6] != "UND"}
    undefined = {row[7] for row in rows if row[6] == "UND"}
    names = ("rms_norm_residual", "swiglu", "topk_softmax", "built_capabilities")
    assert defined == {f"__tvm_ffi_{name}" for name in names}
    assert not {
        name for name in undefined if re.match(r"_?Py[A-Z_]|torch|paddle|at::|cu[A-Z]", name)
    }


def test_capabilities_are_those_of_the_binary(framework: Any) -> None:
    tool = shutil.which("cuobjdump")
    if tool is None:
        pytest.skip("cuobjdump is not on PATH")
    shown = subprocess.run(
        [tool, "--list-elf", "--list-ptx", str(_library(framework))], capture_output=True, text=True
    ).stdout
    declared = framework.operators.built_capabilities()
    # cuobjdump lists family-specific code (10.0f) under the plain name, sm_100.
    number = {
        entry: entry.removesuffix("+PTX").removesuffix("f").replace(".", "") for entry in declared
    }
    binary = set(re.findall(r"\.sm_(\w+)\.cubin", shown))
    ptx = set(re.findall(r"\.sm_(\w+)\.ptx", shown))
    assert binary == set(number.values())
    assert ptx == {code for entry, code in number.items() if entry.endswith("+PTX")}


def test_submodules_are_there_after_the_first_import(framework: Any) -> None:
    for name in ("activation", "normalization", "routing", "_checks", "_library"):
        assert hasattr(framework.operators, name)


def test_paddle_guard_does_not_leak_torch() -> None:
    if not frameworks.installed("paddle"):
        pytest.skip("paddle is not installed")
    code = (
        "import sys, paddle\n"
        "with paddle.use_compat_guard(scope={'fused_norm'}, silent=True):\n"
        "    import fused_norm\n"
        "x = paddle.ones([2, 8])\n"
        "assert fused_norm.swiglu(x, x).shape == [2, 8]\n"
        "assert 'torch' not in sys.modules, 'the proxy is left behind'\n"
        "assert fused_norm.activation.torch.Tensor is paddle.Tensor\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_gradient_is_refused_and_no_grad_is_not(framework: Any, device: str) -> None:
    x = framework.tensor(np.ones((2, 8)), "float32", device)
    framework.require_gradient(x)
    operators = framework.operators
    calls = (
        lambda: operators.swiglu(x, x),
        lambda: operators.rms_norm_residual(x, x, x[0], 1e-6),
        lambda: operators.topk_softmax(x, 2),
    )
    for call in calls:
        with pytest.raises(RuntimeError, match="no backward pass"):
            call()
        with framework.no_grad():
            call()


def test_cpu_and_gpu_agree(framework: Any, gpu: str, dtype: str, random: Any) -> None:
    x = random.normal(0.0, 3.0, (64, 1000)).astype(np.float32)
    residual = random.normal(size=(64, 1000)).astype(np.float32)
    weight = random.normal(size=(1000,)).astype(np.float32)
    results = []
    for device in ("cpu", gpu):
        tensors = [framework.tensor(values, dtype, device) for values in (x, residual, weight)]
        y, total = framework.operators.rms_norm_residual(*tensors, 1e-6)
        gated = framework.operators.swiglu(tensors[0], tensors[1])
        weights, indices = framework.operators.topk_softmax(tensors[0], 40, True)
        results.append([framework.numpy(t) for t in (total, indices, y, gated, weights)])
    (total, indices, *floats), (gpu_total, gpu_indices, *gpu_floats) = results
    np.testing.assert_array_equal(total, gpu_total)
    np.testing.assert_array_equal(indices, gpu_indices)
    # Two roundings of nearly the same fp32 value: at most one unit in the last place apart.
    limits = [oracle.UNIT_ROUNDOFF[dtype]] * 2 + [oracle.UNIT_ROUNDOFF["float32"]]
    for a, b, unit in zip(floats, gpu_floats, limits, strict=True):
        np.testing.assert_allclose(a, b, rtol=2 * unit + oracle.SOFTMAX_ARITHMETIC, atol=2.0**-24)


def test_runs_on_the_stream_that_is_current(framework: Any, gpu: str) -> None:
    """The input is written on a side stream, after long work: another stream would read too early."""
    big = framework.tensor(np.zeros((4096, 4096), np.float32), "float32", gpu)
    ones = framework.tensor(np.ones((256, 4096), np.float32), "float32", gpu)
    weight = framework.tensor(np.ones(4096, np.float32), "float32", gpu)
    x = framework.tensor(np.zeros((256, 4096), np.float32), "float32", gpu)
    with framework.side_stream():
        for _ in range(40):
            big = framework.matmul(big, big)
        x.copy_(ones + big[:256])
        y, total = framework.operators.rms_norm_residual(x, x, weight, 0.0)
        gated = framework.operators.swiglu(x, x)
        weights, _ = framework.operators.topk_softmax(x[:, :4], 2, False)
    np.testing.assert_array_equal(framework.numpy(total), np.full((256, 4096), 2.0))
    np.testing.assert_allclose(framework.numpy(y), 1.0, rtol=1e-6)
    np.testing.assert_allclose(framework.numpy(gated), 1.0 / (1.0 + np.exp(-1.0)), rtol=1e-6)
    np.testing.assert_allclose(framework.numpy(weights), 0.25, rtol=1e-6)


def test_runs_in_a_cuda_graph(framework: Any, gpu: str) -> None:
    if framework.name != "torch":
        pytest.skip("graph capture is tested through torch's interface")
    torch = framework.torch
    x = torch.zeros((8, 512), device=gpu, dtype=torch.bfloat16)
    weight = torch.ones(512, device=gpu, dtype=torch.bfloat16)
    framework.operators.rms_norm_residual(x, x, weight)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, total = framework.operators.rms_norm_residual(x, x, weight, 0.0)
    x.fill_(3.0)
    graph.replay()
    torch.cuda.synchronize()
    np.testing.assert_array_equal(framework.numpy(total), np.full((8, 512), 6.0))
    np.testing.assert_allclose(framework.numpy(y), 1.0, rtol=2.0**-8)


def test_runs_on_the_device_of_its_tensors(framework: Any, gpu: str) -> None:
    if framework.gpu_count() < 2:
        pytest.skip("needs two GPUs")
    values = np.linspace(-2.0, 2.0, 512, dtype=np.float32).reshape(2, 256)
    x = framework.tensor(values, "float32", f"{gpu}:1")
    out = framework.operators.swiglu(x, x)
    assert out.device == x.device
    np.testing.assert_allclose(
        framework.numpy(out),
        oracle.swiglu(values, values, "float32"),
        rtol=oracle.SWIGLU_ARITHMETIC,
    )
