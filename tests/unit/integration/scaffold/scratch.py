"""A scratch checkout of the farm, and all that tells one state of it from another."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ci.registry import REPOSITORY


@dataclass(frozen=True)
class State:
    """All that may tell one state of a checkout from another: every file outside of git's own folder
    with its mode, git's status, index, configuration and submodules' folders.
    """

    files: tuple[tuple[str, str], ...]
    status: str
    index: str
    config: str
    modules: tuple[str, ...]
    leftovers: tuple[str, ...]


def clone_of_checkout(target: Path) -> Path:
    """This checkout as a clone, with what is not committed here as a commit of its own."""
    call("clone", "-q", str(REPOSITORY), str(target), cwd=REPOSITORY)
    changed = call("ls-files", "-z", "--modified", "--others", "--exclude-standard", cwd=REPOSITORY)
    for name in filter(None, changed.split("\0")):
        source, copy = REPOSITORY / name, target / name
        if source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)
        elif not source.exists():
            copy.unlink(missing_ok=True)
    call("add", "--all", cwd=target)
    identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
    call(*identity, "commit", "-q", "--allow-empty", "-m", "as it is here", cwd=target)
    return target


def call(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(("git", *arguments), cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def state_of(checkout: Path) -> State:
    """The state of a checkout, read with git and hashlib."""
    git_dir = checkout / ".git"
    files = [
        path
        for path in checkout.rglob("*")
        if git_dir not in path.parents and path != git_dir and "__pycache__" not in path.parts
    ]
    status = call("status", "--porcelain", "--ignored", cwd=checkout).splitlines(keepends=True)
    return State(
        files=tuple(sorted((str(path.relative_to(checkout)), fingerprint(path)) for path in files)),
        status="".join(line for line in status if "__pycache__" not in line),
        index=call("ls-files", "--stage", cwd=checkout),
        config=(git_dir / "config").read_text(),
        modules=tuple(sorted(str(path) for path in (git_dir / "modules").rglob("*"))),
        leftovers=tuple(sorted(path.name for path in git_dir.glob("integrate*"))),
    )


def fingerprint(path: Path) -> str:
    if path.is_symlink() or path.is_dir():
        return "link" if path.is_symlink() else "folder"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{path.stat().st_mode:o} {digest}"
