"""A git checkout of the farm, and what integrating a library asks of git in it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.errors import ConfigError, InfrastructureError
from ci.proc import Command, Completed, run
from ci.registry import build_utils

_TIMEOUT = 1800.0


def git_environment() -> Mapping[str, str]:
    """The environment of git: nothing of a hook that calls us, and no question to a terminal."""
    return build_utils.git_environment() | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8"}


def ask_git(*arguments: str, cwd: Path) -> Completed:
    """What came of a git command; a failure is a value here."""
    return run(Command(("git", *arguments), cwd=cwd, env=git_environment(), timeout=_TIMEOUT))


def call_git(*arguments: str, cwd: Path) -> str:
    """The output of a git command. Raises :class:`~ci.errors.InfrastructureError` when it fails."""
    done = ask_git(*arguments, cwd=cwd)
    if not done.ok:
        said = done.tail(8)
        raise InfrastructureError(
            f"git {arguments[0]} failed in {cwd}",
            cause=said[-1] if said else "git said nothing",
            next_step=done.command.shown,
            details=said,
        )
    return done.output.rstrip()


@dataclass(frozen=True)
class Checkout:
    """A checkout of the farm: ``repository`` is the top folder of its work tree."""

    repository: Path

    def git(self, *arguments: str) -> str:
        """The output of a git command in the checkout."""
        return call_git(*arguments, cwd=self.repository)

    def in_git_dir(self, name: str) -> Path:
        """Where git keeps ``name`` (``index``, ``config``, ``modules/…``) of this work tree."""
        return Path(self.git("rev-parse", "--path-format=absolute", "--git-path", name))

    def gitlink(self, path: str) -> str:
        """The commit that the index records for the submodule ``path``, empty when there is none."""
        fields = self.git("ls-files", "--stage", "--", path).split()
        return fields[1] if fields[:1] == ["160000"] else ""

    def record_gitlink(self, path: str, commit: str) -> None:
        """Bring the index to ``commit`` for the submodule ``path``; an empty one takes it out."""
        if self.gitlink(path) == commit:
            return
        if commit:
            self.git("update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")
        else:
            self.git("update-index", "--force-remove", path)

    def changed(self, *paths: str) -> tuple[str, ...]:
        """Those of ``paths`` that differ from the last commit, or that it does not hold."""
        done = self.git("status", "--porcelain", "-z", "--untracked-files=all", "--", *paths)
        return tuple(entry[3:] for entry in done.split("\0") if entry)

    def sync(self) -> None:
        """Bring the files that are derived from the declarations up to date.

        A process of its own does it: this one has read the registry as it was before.
        """
        done = self.run_ci("sync")
        if not done.ok:
            raise ConfigError(
                "the files derived from the declarations cannot be written",
                cause=done.tail(1)[0] if done.output else "the farm said nothing",
                next_step="python -m ci sync",
                details=done.tail(12),
            )

    def stale(self) -> str:
        """What ``sync --check`` says is stale; empty when nothing is."""
        done = self.run_ci("sync", "--check")
        return "" if done.ok else " ".join(done.output.split())

    def run_ci(self, *arguments: str) -> Completed:
        """What came of a verb of the checkout's own farm, in a process that reads its registry anew."""
        argv = (sys.executable, "-m", "ci", *arguments)
        return run(Command(argv, cwd=self.repository, env=git_environment(), timeout=_TIMEOUT))
