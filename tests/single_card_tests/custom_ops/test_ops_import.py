"""Import suite of an installed wheel: every declared library is loaded or blocked with reasons.

Run it from an empty folder, in an environment that holds the wheel, Paddle and pytest and cannot
see the sources of the wheel. What is expected of a library is worked out here from the manifest and
from Paddle, with `packaging` and not with the loader's code, so that the two can disagree.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

PACKAGE = "paddlefleet_ops"
BOGUS = "no_such_name_in_any_library"

# A library that fails is then a failed test of its own, with the cause, and not an error of all
# tests.
os.environ["PADDLEFLEET_OPS_ON_ERROR"] = "block"


def read_manifest() -> dict[str, Any]:
    """The manifest of the installed wheel, read without importing the package."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None, f"{PACKAGE} is not installed here: pip install the wheel first"
    assert spec.origin is not None, f"{PACKAGE} is a bare folder without __init__.py"
    path = Path(spec.origin).parent / "_manifest.json"
    assert path.is_file(), (
        f"{path} is missing: {PACKAGE} comes from a source tree, not from a wheel"
    )
    manifest: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return manifest


MANIFEST = read_manifest()
LIBRARIES: list[dict[str, Any]] = MANIFEST["libraries"]
LEFT_OUT: list[dict[str, Any]] = MANIFEST["left_out"]
ENTRIES = [*LIBRARIES, *LEFT_OUT]
IN_WHEEL = {entry["name"]: entry for entry in LIBRARIES}

each_entry = pytest.mark.parametrize("entry", ENTRIES, ids=[entry["name"] for entry in ENTRIES])


def cuda_version() -> str | None:
    paddle = importlib.import_module("paddle")
    return str(paddle.version.cuda()) if paddle.is_compiled_with_cuda() else None


def device_capability() -> str | None:
    paddle = importlib.import_module("paddle")
    if not paddle.is_compiled_with_cuda() or paddle.device.cuda.device_count() == 0:
        return None
    major, minor = paddle.device.cuda.get_device_capability()
    return f"{major}.{minor}"


def holds(condition: str, found: str | None) -> bool:
    return not condition or (found is not None and Version(found) in SpecifierSet(condition))


def expected_reasons(entry: dict[str, Any]) -> list[str]:
    """A fragment for every reason that the blocked message has to hold; empty: it has to load."""
    if entry["name"] not in IN_WHEEL:
        return list(entry["reasons"]) or ["not built into this wheel"]
    requires = entry["requires"]
    fragments = []
    if not holds(requires["cuda"], cuda_version()):
        fragments.append(f"needs CUDA {requires['cuda']}")
    if not holds(requires["python"], "{}.{}".format(*sys.version_info[:2])):
        fragments.append(f"needs Python {requires['python']}")
    capability = device_capability()
    without_gpu = capability is None and requires["cpu_path"]
    if not without_gpu and not holds(requires["capability"], capability):
        fragments.append(f"needs compute capability {requires['capability']}")
    missing = (
        name
        for name in entry["depends_on"]
        if name not in IN_WHEEL or expected_reasons(IN_WHEEL[name])
    )
    return fragments + [f"needs the library {name}" for name in missing]


class Summary:
    """A pytest plugin that prints one line for each library at the end of the run."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"libraries of {PACKAGE} {MANIFEST['version']}")
        for line in self.lines:
            terminalreporter.write_line(line)


def summary_line(state: Any) -> str:
    line = f"{state.name}: {state.state}"
    return f"{line}: {'; '.join(state.reasons)}" if state.reasons else line


@pytest.fixture(scope="session")
def ops(request: pytest.FixtureRequest) -> ModuleType:
    """The package, imported once."""
    package = importlib.import_module(PACKAGE)
    lines = [summary_line(state) for state in package.libraries()]
    request.config.pluginmanager.register(Summary(lines), "paddlefleet_ops_summary")
    return package


def import_or_fail(entry: dict[str, Any]) -> ModuleType:
    """The library through the package; the loader's own words when it does not import."""
    try:
        return importlib.import_module(f"{PACKAGE}.{entry['module']}")
    except (ImportError, RuntimeError) as error:
        words = str(error)
    pytest.fail(f"{entry['name']} has to load here, and did not.\n{words}", pytrace=False)


def blocked_text(entry: dict[str, Any]) -> str:
    """The message with which the import of a blocked library is refused."""
    with pytest.raises(RuntimeError) as caught:
        importlib.import_module(f"{PACKAGE}.{entry['module']}")
    return str(caught.value)


def test_the_wheel_holds_a_library() -> None:
    assert LIBRARIES, "the manifest lists no library: the wheel is empty"


def test_the_package_comes_from_the_installed_wheel(ops: ModuleType) -> None:
    assert ops.__file__ is not None
    place = Path(ops.__file__).resolve()
    installed = {Path(sysconfig.get_path(key)).resolve() for key in ("purelib", "platlib")}
    assert any(place.is_relative_to(folder) for folder in installed), (
        f"{place} is in none of {sorted(map(str, installed))}: the tests would see a source tree"
    )


def test_the_version_is_that_of_the_distribution(ops: ModuleType) -> None:
    assert Version(metadata.version(PACKAGE)) == Version(MANIFEST["version"])
    assert ops.__version__ == MANIFEST["version"]


def test_every_declared_library_has_one_state(ops: ModuleType) -> None:
    assert [state.name for state in ops.libraries()] == [entry["name"] for entry in ENTRIES]


@each_entry
def test_library_is_loaded_or_explained(ops: ModuleType, entry: dict[str, Any]) -> None:
    reasons = expected_reasons(entry)
    if not reasons:
        module = import_or_fail(entry)
        assert module is sys.modules[entry["module"]], "two module objects for one library"
        assert module is getattr(ops, entry["module"])
        return
    message = blocked_text(entry)
    missing = [reason for reason in reasons if reason not in message]
    assert not missing, f"the message does not give these reasons: {missing}\n{message}"
    assert entry["hint"] in message
    assert message == ops.blocked_import_messages[f"{PACKAGE}.{entry['module']}"]


@each_entry
def test_library_has_its_public_names(ops: ModuleType, entry: dict[str, Any]) -> None:
    if expected_reasons(entry):
        assert not hasattr(ops, entry["module"]), "a blocked library is an attribute"
        return
    module = import_or_fail(entry)
    for public_name in entry["public_names"]:
        submodule, _, attribute = public_name.rpartition(":")
        owner: Any = importlib.import_module(submodule) if submodule else module
        for part in attribute.split("."):
            assert hasattr(owner, part), f"{public_name}: {owner!r} has no {part!r}"
            owner = getattr(owner, part)


@each_entry
def test_submodules_are_one_object_under_both_names(ops: ModuleType, entry: dict[str, Any]) -> None:
    reasons = expected_reasons(entry)
    if not reasons:
        import_or_fail(entry)
    own = [
        name
        for name, module in list(sys.modules.items())
        if module is not None and name.partition(".")[0] == entry["module"]
    ]
    assert bool(own) == (not reasons), "a blocked library is imported, or a loaded one is not"
    for name in own:
        assert importlib.import_module(f"{PACKAGE}.{name}") is sys.modules[name]


@each_entry
def test_availability_tells_what_importing_does(ops: ModuleType, entry: dict[str, Any]) -> None:
    reasons = expected_reasons(entry)
    if not reasons:
        import_or_fail(entry)
    available = getattr(ops, f"is_{entry['availability']}_available")
    assert available() is (not reasons)


@each_entry
def test_a_name_that_is_not_there_is_an_error(ops: ModuleType, entry: dict[str, Any]) -> None:
    if not expected_reasons(entry):
        import_or_fail(entry)
        with pytest.raises(ImportError):
            importlib.import_module(f"{PACKAGE}.{entry['module']}.{BOGUS}")
        assert f"{PACKAGE}.{entry['module']}.{BOGUS}" not in sys.modules
        return
    with pytest.raises(RuntimeError, match="Guard its use"):
        importlib.import_module(f"{PACKAGE}.{entry['module']}.{BOGUS}")


def test_introspection_over_the_package_does_not_crash(ops: ModuleType) -> None:
    names = {name for name, _ in inspect.getmembers(ops)}
    assert names >= {"libraries", "blocked_import_messages"}
    with pytest.raises(AttributeError, match=BOGUS):
        getattr(ops, BOGUS)


def test_the_compat_proxy_is_off_after_the_import(ops: ModuleType) -> None:
    proxy = importlib.import_module("paddle.compat.proxy")
    assert proxy.TORCH_PROXY_FINDER not in sys.meta_path
    left = [
        name
        for name, module in sys.modules.items()
        if name.partition(".")[0] == "torch" and isinstance(module, proxy.ProxyModule)
    ]
    assert left == [], "torch is Paddle's proxy outside of the compat guard"


def test_the_folder_of_the_package_is_not_on_the_path(ops: ModuleType) -> None:
    assert ops.__file__ is not None
    folder = Path(ops.__file__).parent.resolve()
    assert folder not in [Path(entry).resolve() for entry in sys.path if entry]
