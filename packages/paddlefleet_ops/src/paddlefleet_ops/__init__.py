"""GPU operator libraries that were migrated from PyTorch to Paddle, in one package.

Importing it loads every library of the wheel whose conditions on CUDA, Python and compute
capability are met here, each inside its own ``paddle.use_compat_guard``. A library ``x`` is then
``paddlefleet_ops.x``, with all its submodules. Of every other library the import raises a
:class:`RuntimeError` that says why and what to do; ``is_x_available()`` tells beforehand, and
``python -m paddlefleet_ops`` prints all of them.

The environment variable ``PADDLEFLEET_OPS_ON_ERROR`` decides about a library that should load but
fails: ``raise`` (the default) stops here with an :class:`ImportError`, ``block`` keeps the others.
"""

from __future__ import annotations

from ._gate import others_wait as _others_wait

with _others_wait(__name__):
    import sys as _sys
    from contextlib import nullcontext as _nullcontext
    from contextlib import redirect_stdout as _redirect_stdout
    from pathlib import Path as _Path

    from . import _decision, _loader, _observe
    from ._blocker import BlockedAttributeError, LibraryBlockedError
    from ._loader import LibraryLoadError, LibraryState, _safe_load_ecosystem_lib
    from ._manifest import ManifestError
    from ._manifest import read_manifest as _read_manifest

    _wheel = _read_manifest(__name__)
    _on_error = _observe.on_error()
    _is_report = _observe.is_report(__name__, _sys.orig_argv)
    _paddle = _observe.import_paddle()
    _environment = _observe.observe(_paddle, with_capability=_decision.needs_capability(_wheel))
    _registry = _loader.Registry(__name__)

    __version__ = _wheel.version
    blocked_import_messages = _registry.blocked_import_messages
    _functions = _loader.availability_functions(_wheel, _registry)
    _hints = _loader.hint_constants(_wheel)
    globals().update(_functions)
    globals().update(_hints)

    def libraries() -> tuple[LibraryState, ...]:
        """What became of every declared library: those of the wheel in load order, then the others."""
        return tuple(sorted(_registry.states.values(), key=lambda state: not state.in_wheel))

    def __getattr__(name: str) -> object:
        """Explain a blocked library. Raises :class:`AttributeError`, as for any other unknown name."""
        message = blocked_import_messages.get(f"{__name__}.{name}")
        if message is not None:
            raise BlockedAttributeError(message)
        known = ""
        if name.startswith("is_") and name.endswith("_available"):
            known = f"; there are {', '.join(sorted(_functions))}"
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{known}")

    def __dir__() -> list[str]:
        return sorted(globals())

    # What a library prints while it is imported must not get into the output of the report.
    with _redirect_stdout(_sys.stderr) if _is_report else _nullcontext():
        _loader.start(
            _loader.Package(__name__, _Path(__file__).parent, globals(), _paddle.use_compat_guard),
            _wheel,
            _environment,
            _registry,
            raise_on_failure=_on_error == "raise" and not _is_report,
        )
    globals().update(_loader.availability_flags(_wheel, _registry))

# The names of the libraries are known from the manifest only.
__all__ = [
    "BlockedAttributeError",
    "LibraryBlockedError",
    "LibraryLoadError",
    "LibraryState",
    "ManifestError",
    "_safe_load_ecosystem_lib",
    "blocked_import_messages",
    "libraries",
    *_functions,
    *_hints,
    *(state.module for state in libraries() if state.state == _loader.LOADED),
]
