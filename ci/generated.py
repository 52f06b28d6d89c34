"""Committed files that are derived from the declarations: written by ``sync``, checked by ``sync
--check``.

``.gitmodules`` as a whole (a library with a pin is a submodule), the gitlink of every pin in git's
index, and in ``.gitignore`` the block of artifact folders that a plain or an editable build collects
into the source tree. ``docker/docker-bake.json`` follows from the matrix, the pins and the Dockerfiles.
"""

from __future__ import annotations

from ci.errors import InfrastructureError
from ci.images.bake import BAKE_FILE, bake_text
from ci.images.pins import load_pins
from ci.matrix.load import load
from ci.proc import Command, run
from ci.registry import MATRIX, REPOSITORY, build_utils

_BEGIN = "# >>> artifact folders: written by `python -m ci sync`"
_END = "# <<< artifact folders"
_PACKAGE = "packages/paddlefleet_ops"


def gitmodules_text() -> str:
    """``.gitmodules``: one section per pinned submodule, in the order of declaration."""
    sections: dict[str, str] = {}
    for library in build_utils.all_libs():
        if library.is_submodule and library.pin is not None:
            sections[library.submodule_path] = library.url
    return "".join(
        f'[submodule "{_PACKAGE}/{path}"]\n\tpath = {_PACKAGE}/{path}\n\turl = {url}\n'
        for path, url in sections.items()
    )


def ignored_lines() -> tuple[str, ...]:
    """A line per artifact target of every declared library, for the manifest and for its stub."""
    targets = {
        artifact.target for library in build_utils.all_libs() for artifact in library.artifacts
    }
    return tuple(
        f"/{_PACKAGE}/src/paddlefleet_ops/{target}"
        for target in sorted({*targets, "__init__.pyi", "_manifest.json"})
    )


def gitignore_text(current: str) -> str:
    """``current`` with the block of artifact folders brought up to date."""
    block = "\n".join((_BEGIN, *ignored_lines(), _END))
    if _BEGIN in current and _END in current:
        before, rest = current.split(_BEGIN, 1)
        return f"{before}{block}{rest.split(_END, 1)[1]}"
    return f"{current.rstrip()}\n\n{block}\n"


def _wanted() -> dict[str, str]:
    ignore = REPOSITORY / ".gitignore"
    current = ignore.read_text("utf-8") if ignore.exists() else ""
    return {
        ".gitmodules": gitmodules_text(),
        ".gitignore": gitignore_text(current),
        BAKE_FILE: bake_text(load(MATRIX), load_pins()),
    }


def wanted_gitlinks() -> dict[str, str]:
    """Path of every submodule to the commit that its declaration pins."""
    return {
        f"{_PACKAGE}/{library.submodule_path}": library.pin
        for library in build_utils.all_libs()
        if library.is_submodule and library.pin is not None
    }


def recorded_gitlinks() -> dict[str, str]:
    """Path of every submodule to the commit that git's index records."""
    done = run(Command(("git", "ls-files", "--stage", "--", _PACKAGE), cwd=REPOSITORY))
    if not done.ok:
        raise InfrastructureError(
            "git cannot list the submodules",
            cause=done.output.strip(),
            next_step="git status",
        )
    found = {}
    for line in done.output.splitlines():
        fields, path = line.split("\t", 1)
        mode, commit, _ = fields.split()
        if mode == "160000":
            found[path] = commit
    return found


def stale_files() -> tuple[str, ...]:
    """The names of the files and gitlinks that are not what the declarations say."""
    stale = []
    for name, text in _wanted().items():
        path = REPOSITORY / name
        if not path.exists() or path.read_text("utf-8") != text:
            stale.append(name)
    wanted, recorded = wanted_gitlinks(), recorded_gitlinks()
    stale += [
        f"gitlink {path}"
        for path in sorted(wanted.keys() | recorded.keys())
        if wanted.get(path) != recorded.get(path)
    ]
    return tuple(stale)


def write_files() -> None:
    """Write every derived file anew, and bring git's index to the pins."""
    for name, text in _wanted().items():
        place = REPOSITORY / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(text, "utf-8")
    wanted, recorded = wanted_gitlinks(), recorded_gitlinks()
    for path, commit in wanted.items():
        if recorded.get(path) != commit:
            _update_index("--add", "--cacheinfo", f"160000,{commit},{path}")
    for path in recorded.keys() - wanted.keys():
        _update_index("--force-remove", path)


def _update_index(*arguments: str) -> None:
    done = run(Command(("git", "update-index", *arguments), cwd=REPOSITORY))
    if not done.ok:
        raise InfrastructureError(
            "git cannot record a submodule", cause=done.output.strip(), next_step="git status"
        )
