"""Every error that the farm shows to a user, in one tree.

All of them are here so that one place (``ci/__main__.py``) can turn an error into an exit code, and
so that an exit code means one thing:

====  =====================================================================
0     all good
1     a finding, a failed build of a library, or a failed test
2     usage or configuration
3     a tool or a toolchain is missing
4     infrastructure: network, disk, image pull, a lost GPU
130   interrupted
====  =====================================================================

An error says what happened (``message``), the likely cause (``cause``), and what to do next
(``next_step``, a command where there is one). ``details`` are lines to print below the message, such
as the tail of a log or all problems of a configuration file.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence


class FarmError(Exception):
    """Base of every error that a user may see. ``exit_code`` is the status of the process."""

    exit_code = 1
    kind = "error"

    def __init__(
        self,
        message: str,
        *,
        cause: str = "",
        next_step: str = "",
        details: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause
        self.next_step = next_step
        self.details = tuple(details)

    def as_dict(self) -> dict[str, object]:
        """The error as JSON-ready values: what ``--json`` prints."""
        return {
            "kind": self.kind,
            "exit_code": self.exit_code,
            "message": self.message,
            "cause": self.cause,
            "next_step": self.next_step,
            "details": list(self.details),
        }


class FindingError(FarmError):
    """A check said no: a wheel gate, a stale generated file, an unaccounted artifact."""

    exit_code = 1
    kind = "finding"


class LibraryBuildError(FarmError):
    """A library's own build failed, or yielded something else than its declaration says."""

    exit_code = 1
    kind = "library build"


class SuiteError(FarmError):
    """A test suite failed, ran nothing, or skipped what it cannot justify."""

    exit_code = 1
    kind = "test suite"


class ConfigError(FarmError):
    """Wrong usage, or a wrong configuration value. ``details`` hold all problems at once."""

    exit_code = 2
    kind = "configuration"


class UnmetTogetherError(ConfigError):
    """Requirements that exclude each other."""

    kind = "requirements"


class ToolchainError(FarmError):
    """A compiler, a Python or another tool that the cell needs is not there."""

    exit_code = 3
    kind = "toolchain"


class InfrastructureError(FarmError):
    """The surroundings failed: network, package index, disk space. Trying again may help."""

    exit_code = 4
    kind = "infrastructure"


def from_dict(values: Mapping[str, object]) -> FarmError:
    """The error whose :meth:`FarmError.as_dict` another process wrote; of its own kind and exit code."""
    kinds = {kind.kind: kind for kind in _kinds(FarmError)}
    details = values.get("details")
    return kinds.get(str(values.get("kind")), FarmError)(
        str(values.get("message", "")),
        cause=str(values.get("cause", "")),
        next_step=str(values.get("next_step", "")),
        details=[str(line) for line in details] if isinstance(details, list) else (),
    )


def _kinds(kind: type[FarmError]) -> Iterator[type[FarmError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds(narrower)


def from_os_error(error: OSError) -> InfrastructureError:
    """A file or disk failure that nothing nearer to it expected, as an error for the user."""
    place = f" ({error.filename})" if error.filename else ""
    full = error.errno == errno.ENOSPC
    return InfrastructureError(
        f"{error.strerror or error}{place}",
        cause="the disk is full" if full else "a folder of the run cannot be read or written",
        next_step="free space, or choose other folders with --cache-dir and --out-dir",
    )


class InterruptedRunError(FarmError):
    """The user, or a supervisor, asked the run to stop."""

    exit_code = 130
    kind = "interrupted"


def raise_together(*checks: Callable[[], object]) -> None:
    """Run every check; raise the one :class:`ConfigError`, or one that tells of all."""
    errors = [error for check in checks if (error := _config_error(check)) is not None]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ConfigError(
            f"{len(errors)} things are wrong",
            cause=errors[0].cause,
            next_step=errors[0].next_step,
            details=[line for error in errors for line in (error.message, *error.details)],
        )


def _config_error(check: Callable[[], object]) -> ConfigError | None:
    try:
        check()
    except ConfigError as error:
        return error
    return None
