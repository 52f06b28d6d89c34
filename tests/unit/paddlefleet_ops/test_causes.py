"""Causes are told apart by the errors that the dynamic loader and Python really raise."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
from types import ModuleType, SimpleNamespace

import pytest


def raised(action):
    """The exception of ``action``."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 (any: it is what is looked at)
        action()
    return caught.value


@pytest.fixture
def diagnose(part, manifest_of, entry, tmp_path):
    def run(error, folder=tmp_path, **changes):
        library = manifest_of(entry("quack", **changes)).libraries[0]
        return part("_causes").diagnose(error, library, folder)

    return run


@pytest.fixture
def compile_library(tmp_path):
    """Compile C text to a shared object, as a library's extension is."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler to make a broken shared object with")

    def run(name, text, *options):
        source, target = tmp_path / f"{name}.c", tmp_path / f"{name}.so"
        source.write_text(text)
        subprocess.run(
            [compiler, "-shared", "-fPIC", str(source), "-o", str(target), *options], check=True
        )
        return target

    return run


def load_extension(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    return importlib.util.module_from_spec(spec)


@pytest.mark.parametrize("load", [ctypes.CDLL, load_extension])
@pytest.mark.parametrize(
    ("symbol", "owner"),
    [
        ("_ZN6paddle9from_blobEPv", "another version of Paddle"),
        ("_ZN2at10TensorBase4itemEv", "PyTorch's C++ library"),
        ("_ZN3c105ErrorC1ESs", "PyTorch's C++ library"),
        ("TVMFFINowhereAtAll", "another version of apache-tvm-ffi"),
        ("cudaLaunchKernelExC", "another version of CUDA"),
        ("PyUnstable_Nowhere", "another version of Python"),
        ("something_else", "another version of what defines it"),
    ],
)
def test_an_undefined_symbol_names_its_owner(diagnose, compile_library, load, symbol, owner):
    path = compile_library("broken", f"void {symbol}(void);\nvoid run(void) {{ {symbol}(); }}\n",
                           "-Wl,-z,now")  # fmt: skip
    cause = diagnose(raised(lambda: load(path)))
    assert cause.kind == "undefined symbol"
    assert symbol in cause.text
    assert owner in cause.mend


@pytest.mark.parametrize("load", [ctypes.CDLL, load_extension])
@pytest.mark.parametrize(
    ("stem", "mend"),
    [
        ("cudart", "paddlepaddle-gpu for the same CUDA major"),
        ("nvshmem_host", "paddlepaddle-gpu for the same CUDA major"),
        ("torch_cpu", "linked against PyTorch"),
        ("somewhere", "have auditwheel put it into the wheel"),
    ],
)
def test_a_missing_shared_library_is_named(diagnose, compile_library, tmp_path, load, stem, mend):
    other = compile_library(f"lib{stem}", "void f(void) {}\n", f"-Wl,-soname,lib{stem}.so.99")
    path = compile_library("user", "void f(void);\nvoid run(void) { f(); }\n", str(other))
    other.unlink()
    cause = diagnose(raised(lambda: load(path)))
    assert cause.kind == "missing shared library"
    assert f"lib{stem}.so.99" in cause.text
    assert mend in cause.mend


def test_the_driver_is_no_package(diagnose):
    text = "libcuda.so.1: cannot open shared object file: No such file or directory"
    assert "NVIDIA driver" in diagnose(ImportError(text)).mend


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"not a shared object at all" * 20])
@pytest.mark.parametrize("load", [ctypes.CDLL, load_extension])
def test_a_damaged_shared_object_is_no_missing_one(diagnose, tmp_path, load, content):
    path = tmp_path / "damaged.so"
    path.write_bytes(content)
    assert diagnose(raised(lambda: load(path))).kind == "unusable shared library"


def test_a_missing_kernel_image_is_told_from_a_missing_library(diagnose):
    error = RuntimeError(
        "CUDA error: no kernel image is available for execution on the device (209)"
    )
    cause = diagnose(error)
    assert cause.kind == "no kernel image"
    assert "capability" in cause.mend


def test_a_missing_python_module_is_installed_by_the_librarys_requirements(diagnose):
    error = raised(lambda: importlib.import_module("no_such_module_anywhere"))
    cause = diagnose(error, run_requires=["einops>=0.8", "nvidia-cutlass-dsl==4.5.2"])
    assert cause.kind == "missing Python module"
    assert "no_such_module_anywhere" in cause.text
    assert "pip install 'einops>=0.8' 'nvidia-cutlass-dsl==4.5.2'" in cause.mend
    assert "add it to run_requires" in diagnose(error).mend


def test_a_missing_part_of_the_library_itself_is_a_fault_of_the_wheel(diagnose):
    error = ModuleNotFoundError("No module named 'quack.kernels'", name="quack.kernels")
    assert "artifacts of its declaration" in diagnose(error).mend


def test_a_missing_torch_names_the_importer_that_the_scope_lacks(diagnose):
    def importing(module):
        code = compile("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')",
                       "x.py", "exec")  # fmt: skip
        return raised(lambda: exec(code, {"__name__": module}))

    cause = diagnose(importing("helper.sub"), compat_scope=["quack", "triton"])
    assert cause.kind == "missing Python module"
    assert "helper.sub imports torch and is outside the compat scope (quack, triton)" in cause.mend
    assert "add 'helper' to compat_scope" in cause.mend
    assert "outside" not in diagnose(importing("quack.sub")).mend


def paddle_module():
    module = ModuleType("torch")
    module.__name__ = "paddle.nn"
    return module


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'paddle._inductor'", name="paddle._inductor"),
        ImportError("cannot import name 'x' from 'torch.utils'", name="torch.utils"),
        raised(lambda: paddle_module().no_such_function),
        raised(lambda: type("Tensor", (), {"__module__": "paddle"})().no_such_method),
        AttributeError("module 'torch' has no attribute 'compile'"),
    ],
)
def test_what_paddle_lacks_of_torch_is_told_from_other_attributes(diagnose, error):
    assert diagnose(error).kind == "missing API of Paddle"


def test_an_attribute_of_something_else_is_a_python_error(diagnose):
    assert diagnose(raised(lambda: SimpleNamespace().missing)).kind == "Python error"
    assert (
        diagnose(ZeroDivisionError("division by zero")).text
        == "ZeroDivisionError: division by zero"
    )


def test_a_name_that_a_dependency_lacks_is_a_matter_of_its_version(diagnose):
    error = raised(lambda: exec("from json import no_such_name"))
    cause = diagnose(error, run_requires=["json==4.5.2"])
    assert cause.kind == "missing name in a dependency"
    assert "another version of json is installed than quack needs: pip install 'json==4.5.2'" in (
        cause.mend
    )
    own = ImportError("cannot import name 'x' from 'quack.sub'", name="quack.sub")
    assert diagnose(own).kind == "Python error"


def test_a_circular_import_is_named(diagnose):
    text = (
        "cannot import name 'a' from partially initialized module 'quack.b' "
        "(most likely due to a circular import)"
    )
    assert diagnose(ImportError(text, name="quack.b")).kind == "circular import"


def test_an_error_that_a_library_wrapped_is_looked_through(diagnose):
    def wrap():
        try:
            raise ImportError("liba.so.1: cannot open shared object file: No such file")
        except ImportError as error:
            raise RuntimeError("quack: build the extension first") from error

    assert diagnose(raised(wrap)).kind == "missing shared library"


def test_an_error_after_a_fall_back_is_not_blamed_on_what_was_tried_first(diagnose):
    def fall_back():
        try:
            importlib.import_module("torch_of_another_kind")
        except ImportError:
            importlib.import_module("the_fall_back")

    assert "the_fall_back" in diagnose(raised(fall_back)).text


def test_the_place_is_the_librarys_own_line(part, diagnose, tmp_path):
    path = tmp_path / "quack" / "sub.py"
    path.parent.mkdir()
    path.write_text("\n\n1 / 0\n")
    code = compile(path.read_text(), str(path), "exec")
    cause = diagnose(raised(lambda: exec(code, {"__name__": "quack.sub"})))
    assert cause.where == "quack/sub.py:3"
    assert "(at quack/sub.py:3)" in str(cause)
