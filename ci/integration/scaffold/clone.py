"""The sources of a library to integrate: cloned aside, at the commit that becomes its pin."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from ci.integration.scaffold.checkout import ask_git, call_git
from ci.integration.scaffold.request import IntegrateRequest

# git fetches submodules from folders only when it is told that this is wanted.
_LOCAL = ("-c", "protocol.file.allow=always")


@dataclass(frozen=True)
class Cloned:
    """A clone in ``folder`` at ``commit``; with ``problems`` there is no commit."""

    folder: Path
    commit: str = ""
    problems: tuple[str, ...] = ()


def clone(request: IntegrateRequest, folder: Path) -> Cloned:
    """Clone what ``request`` asks for into ``folder`` and check its revision out.

    What is wrong with the address or the revision is a problem. Raises
    :class:`~ci.errors.InfrastructureError` when a nested submodule cannot be fetched.
    """
    done = ask_git(
        "clone", "--quiet", "--no-checkout", "--no-hardlinks", request.declared_url, str(folder),
        cwd=folder.parent,
    )  # fmt: skip
    if not done.ok:
        said = [line for line in done.tail(12) if line.startswith(("fatal:", "error:"))]
        why = said[0] if said else " ".join(done.tail(1)) or "it said nothing"
        return Cloned(folder, problems=(f"--url {request.url}: git cannot read it: {why}",))
    commit = _commit_of(request.revision, folder)
    if not commit:
        return Cloned(folder, problems=(_unknown_revision(request, folder),))
    call_git("checkout", "--quiet", "--detach", commit, cwd=folder)
    if request.nested is not None:
        local = _LOCAL if request.is_local else ()
        call_git(
            *local, "submodule", "--quiet", "update", "--init", "--recursive", "--",
            *request.nested, cwd=folder,
        )  # fmt: skip
    return Cloned(folder, commit)


def _commit_of(revision: str, folder: Path) -> str:
    """The full commit of a branch, a tag or a commit; of the remote's HEAD when none is given."""
    wanted = (f"refs/remotes/origin/{revision}", revision) if revision else ("HEAD",)
    for name in wanted:
        done = ask_git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", cwd=folder)
        if done.ok:
            return done.output.strip()
    if len(revision) == 40 and ask_git("fetch", "--quiet", "origin", revision, cwd=folder).ok:
        return revision  # a commit that no branch or tag leads to
    return ""


def _unknown_revision(request: IntegrateRequest, folder: Path) -> str:
    if not request.revision:
        return f"--url {request.url}: it has no commit"
    listed = call_git(
        "for-each-ref", "--format=%(refname:lstrip=-1)", "refs/remotes/origin", "refs/tags",
        cwd=folder,
    )  # fmt: skip
    known = sorted({name for name in listed.split() if name != "HEAD"})
    near = difflib.get_close_matches(request.revision, known, n=3, cutoff=0.4) or known[:3]
    hint = f"; nearest: {', '.join(near)}" if near else ""
    return f"--rev {request.revision}: no branch, tag or commit of {request.url}{hint}"
