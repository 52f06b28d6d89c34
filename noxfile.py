"""The farm's sessions. Each makes an environment for the farm and calls ``python -m ci VERB``.

What follows ``--`` goes to the verb: ``nox -s wheel-cu130 -- --set templates --python 3.12``.
"""

from __future__ import annotations

from pathlib import Path

import nox
from nox.project import dependency_groups, load_toml

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "tests"]

ROOT = Path(__file__).resolve().parent
MATRIX = load_toml(str(ROOT / "matrix.toml"))
PROJECT = load_toml(str(ROOT / "pyproject.toml"))
CUDAS = [entry["version"] for entry in MATRIX["cuda"]]


def _farm(session: nox.Session, *groups: str) -> None:
    session.install("-e", ".", *dependency_groups(PROJECT, *groups))


def _verb(session: nox.Session, *arguments: str) -> None:
    _farm(session)
    session.run("python", "-m", "ci", *arguments, *session.posargs)


def _wheel_session(cuda: str) -> None:
    label = "cu" + cuda.replace(".", "")

    @nox.session(name=f"wheel-{label}")
    def wheel(session: nox.Session) -> None:
        _verb(session, "wheel", "--cuda", cuda)

    wheel.__doc__ = f"Build, repair and import-test the wheel for CUDA {cuda}."


for _cuda in CUDAS:
    _wheel_session(_cuda)


@nox.session
def wheels(session: nox.Session) -> None:
    """Build all cells of a tier: -- --tier pr (default), nightly or release."""
    tier = () if any(arg.startswith("--tier") for arg in session.posargs) else ("--tier", "pr")
    _verb(session, "wheel", *tier)


@nox.session
def shell(session: nox.Session) -> None:
    """Open a cell's environment, or run a command there: -- cu130-cp312 [-- COMMAND]."""
    _verb(session, "shell")


@nox.session(name="import")
def import_suite(session: nox.Session) -> None:
    """Run the import suite on wheels in fresh environments: -- WHEEL ... (default: dist/)."""
    _verb(session, "import")


@nox.session
def bundle(session: nox.Session) -> None:
    """All that cells need, for a machine without network: -- --set templates --out DIR."""
    verbs = ("make", "verify")
    given = session.posargs[:1]
    _verb(session, "bundle", *(() if given and given[0] in verbs else ("make",)))


@nox.session
def check(session: nox.Session) -> None:
    """Apply the pre-integration checklist: -- LIBRARY | FOLDER | pypi:… (default: all declared)."""
    _verb(session, "check")


@nox.session
def integrate(session: nox.Session) -> None:
    """Add a library: -- NAME --kind KIND --url URL (declaration, submodule, tests), then check it."""
    _verb(session, "integrate")


@nox.session
def remove(session: nox.Session) -> None:
    """Take a library out again, with all that integrate made: -- NAME."""
    _verb(session, "remove")


@nox.session
def matrix(session: nox.Session) -> None:
    """Show every cell of the matrix, accepted or rejected with its reason."""
    _verb(session, "matrix")


@nox.session
def toolchain(session: nox.Session) -> None:
    """Show which compilers and Pythons this host has and what each cell would use."""
    _verb(session, "toolchain")


@nox.session
def images(session: nox.Session) -> None:
    """Build the farm's images, or look at them: -- cu130 --base airgapped | --verify | --dry-run."""
    _verb(session, "images")


@nox.session
def cache(session: nox.Session) -> None:
    """Look after stored results: -- stats (default) | verify [--remove] | gc --limit 20g | why KEY."""
    verbs = ("stats", "verify", "gc", "why")
    given = session.posargs[:1]
    _verb(session, "cache", *(() if given and given[0] in verbs else ("stats",)))


@nox.session
def tests(session: nox.Session) -> None:
    """Run the farm's own tests, on all cores: -- PATHS OR PYTEST OPTIONS (-n0: in one process)."""
    _farm(session, "test")
    parallel = ("-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder")
    session.run("python", "-m", "pytest", *parallel, *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types, layers, generated files, locks, and the libraries by reading them."""
    _farm(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("mypy", "--config-file", "pyproject.toml", *_package_files())
    session.run("lint-imports", "--no-cache")
    session.run("python", "-m", "ci", "sync", "--check")
    session.run("python", "-m", "ci", "lock", "--check")
    session.run("python", "-m", "ci", "check", "--static")


def _package_files() -> list[str]:
    """The build files and the loader of the package, for mypy."""
    package = ROOT / "packages" / "paddlefleet_ops"
    files = [*package.glob("build_*.py"), package / "src" / "paddlefleet_ops"]
    return [str(path.relative_to(ROOT)) for path in sorted(files)]
