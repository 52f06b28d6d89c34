"""A library of Paddle's own extension builder goes the whole path: in, built, loaded, right, out again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.unit.integration.scaffold.scratch import State, clone_of_checkout, state_of

from .conftest import Farm, Ran, call

pytestmark = [pytest.mark.network, pytest.mark.slow]

NAME = "blend-op"
SETUP = """\
import paddle

paddle.enable_compat()

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

setup(
    packages=["blend_op"],
    ext_modules=[CUDAExtension(name="blend_op_cpp", sources=["csrc/blend.cc"])],
    cmdclass={"build_ext": BuildExtension},
)
"""
PROJECT = """\
[build-system]
requires = ["setuptools>=70", "torch"]
build-backend = "setuptools.build_meta"

[project]
name = "blend-op"
version = "1.0"
dependencies = ["torch", "numpy>=1.24"]
"""
PACKAGE = '''\
"""Blending of two tensors."""

import torch

import blend_op_cpp  # registers the operator

__all__ = ["blend"]


def blend(first, second, weight):
    """``(1 - weight) * first + weight * second``."""
    return torch.ops.blend_op_cpp.blend(first, second, weight)
'''
CODE = """\
#include <ATen/Functions.h>
#include <torch/library.h>
#include <torch/python.h>

namespace {

at::Tensor blend(at::Tensor first, const at::Tensor& second, double weight) {
  TORCH_CHECK(first.sizes() == second.sizes(), "shapes differ");
  TORCH_CHECK(first.dtype() == at::kFloat && second.dtype() == at::kFloat, "float32 only");
  const at::Tensor left = first.contiguous(), right = second.contiguous();
  at::Tensor result = torch::empty(left.sizes(), left.options());
  const float share = static_cast<float>(weight);
  const float* from = left.data_ptr<float>();
  const float* to = right.data_ptr<float>();
  float* out = result.data_ptr<float>();
  for (int64_t i = 0; i < result.numel(); ++i) out[i] = (1 - share) * from[i] + share * to[i];
  return result;
}

}  // namespace

TORCH_LIBRARY(blend_op_cpp, m) {
  m.def("blend(Tensor first, Tensor second, float weight) -> Tensor");
}
TORCH_LIBRARY_IMPL(blend_op_cpp, CPU, m) { m.impl("blend", &blend); }

extern "C" PyObject* PyInit_blend_op_cpp() {
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "blend_op_cpp", nullptr, -1, nullptr};
  return PyModule_Create(&definition);
}
"""
FILES = {
    "setup.py": SETUP,
    "pyproject.toml": PROJECT,
    "blend_op/__init__.py": PACKAGE,
    "csrc/blend.cc": CODE,
}
EXERCISE = (
    "blend=paddle.to_tensor([1.0, 2.0, 3.0]), paddle.to_tensor([5.0, 2.0, -1.0]), 0.25 -> [3]"
)
SINGLE_CARD = "tests/single_card_tests/custom_ops"
COMPARE = """
import json, sys
import numpy as np, paddle, paddlefleet_ops
rng = np.random.default_rng(5)
a, b = rng.standard_normal((2, 64, 33)).astype("float32")
got = paddlefleet_ops.blend_op.blend(paddle.to_tensor(a), paddle.to_tensor(b), 0.375).numpy()
want = 0.625 * a.astype("float64") + 0.375 * b.astype("float64")
print(json.dumps({"error": float(np.abs(got - want).max()), "torch": "torch" in sys.modules}))
"""
ORACLE = """
ORACLES["blend"] = (lambda a, b, w: (1 - w) * a + w * b, Tolerance(relative=1e-6, absolute=1e-6))
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clone_of_checkout(tmp_path_factory.mktemp("farm") / "checkout")


@pytest.fixture(scope="module")
def farm_here(checkout: Path, cache_dir: Path) -> Farm:
    return Farm(checkout, cache_dir)


@pytest.fixture(scope="module")
def before(checkout: Path) -> State:
    return state_of(checkout)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library as a repository."""
    folder = tmp_path_factory.mktemp("sources") / NAME
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    for arguments in (("init", "-q"), ("add", "-A"), (*identity, "commit", "-q", "-m", "blend")):
        call(["git", *arguments], cwd=folder)
    return folder


@pytest.fixture(scope="module")
def integrated(farm_here: Farm, sources: Path, before: State) -> Ran:
    ran = farm_here.run(
        "integrate", NAME, "--kind", "cuda_extension", "--url", str(sources), "--exercise", EXERCISE
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran


@pytest.fixture(scope="module")
def wheel(farm_here: Farm, integrated: Ran, tmp_path_factory: pytest.TempPathFactory) -> Path:
    ran = farm_here.run(
        "wheel", "--cuda", "13.0", "--libs", NAME, "--json",
        "--python", f"{sys.version_info.major}.{sys.version_info.minor}",
        "--out-dir", str(tmp_path_factory.mktemp("dist")),
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = {row["library"]: row for row in ran.cell["libraries"]}
    assert rows[NAME]["imported"] == "loaded"
    return Path(ran.cell["wheel"])


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    call(
        [sys.executable, "-m", "uv", "pip", "install", "--no-deps", "--target", str(folder), str(wheel)]
    )  # fmt: skip
    return folder


def python(installed: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=dict(os.environ) | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_farm_says_what_it_inferred_and_from_where(integrated: Ran) -> None:
    said = " ".join(integrated.stdout.split())
    for words in (
        "blend_op_cpp.so",
        "setup.py:10 (CUDAExtension)",
        "blend_op/__init__.py (__all__)",
    ):
        assert words in said


def test_the_wheel_holds_the_three_artifacts(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for name in ("blend_op/__init__.py", "blend_op_cpp.py", "blend_op_cpp.so"):
        assert f"paddlefleet_ops/{name}" in names


def test_it_computes_what_numpy_computes(installed: Path, tmp_path: Path) -> None:
    done = python(installed, tmp_path, "-c", COMPARE)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["error"] < 1e-6
    assert found["torch"] is False


def test_its_rendered_tests_run_on_the_wheel(
    installed: Path, checkout: Path, tmp_path: Path
) -> None:
    run = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    functional = checkout / SINGLE_CARD / "test_blend_op.py"
    done = python(installed, tmp_path, *run, str(functional))
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    text = (checkout / SINGLE_CARD / "test_blend_op_precision.py").read_text("utf-8")
    for addition, outcome in (("", "write the oracle of blend"), (ORACLE, "2 passed")):
        path = tmp_path / f"test_precision_{len(addition)}.py"
        path.write_text(text + addition)
        done = python(installed, tmp_path, *run, str(path))
        assert outcome in done.stdout
        assert done.returncode == (not addition)


def test_removing_it_leaves_nothing(
    farm_here: Farm, wheel: Path, checkout: Path, before: State
) -> None:
    assert state_of(checkout) != before
    ran = farm_here.run("remove", NAME)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert state_of(checkout) == before
