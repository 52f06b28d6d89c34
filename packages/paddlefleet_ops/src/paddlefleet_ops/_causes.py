"""Why a library that should load did not: the cause, where it struck, and the mend.

A pure reading of the exception. Undefined symbols, missing shared libraries and missing kernel
images look alike to whoever meets them, and each has another mend.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType

from ._manifest import Library


@dataclass(frozen=True)
class Cause:
    """A failure in words: ``kind`` is one of the texts below, ``where`` is ``file:line``."""

    kind: str
    text: str
    mend: str
    where: str = ""

    def __str__(self) -> str:
        place = f" (at {self.where})" if self.where else ""
        return f"{self.kind}: {self.text}{place}. Mend: {self.mend}"


MISSING_MODULE = "missing Python module"
MISSING_SHARED_LIBRARY = "missing shared library"
DAMAGED_SHARED_LIBRARY = "unusable shared library"
UNDEFINED_SYMBOL = "undefined symbol"
NO_KERNEL_IMAGE = "no kernel image"
MISSING_PADDLE_API = "missing API of Paddle"
MISSING_NAME = "missing name in a dependency"
CIRCULAR_IMPORT = "circular import"
PUBLIC_NAMES = "public names missing"
NAME_TAKEN = "module name taken"
FILES_MISSING = "files missing in the package"
PROXY_LEFT_ON = "compat proxy left on"
DEPENDENCY_FAILED = "dependency failed"
PYTHON_ERROR = "Python error"


class RefusedError(Exception):
    """The loader itself found the fault; ``cause`` says which."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(str(cause))
        self.cause = cause


def diagnose(error: BaseException, library: Library, folder: Path) -> Cause:
    """The cause of ``error``, which was raised while ``library`` was loaded from ``folder``.

    A library may wrap an error in one of its own; the outermost that can be told apart decides.
    """
    for candidate in _chain(error):
        if isinstance(candidate, RefusedError):
            return candidate.cause
        for rule in _RULES:
            found = rule(candidate, library)
            if found is not None:
                kind, mend = found
                return Cause(kind, _text(candidate), mend, _where(candidate, folder))
    return Cause(
        PYTHON_ERROR,
        _text(error),
        f"correct it in the sources of {library.name}: its import has to work under "
        "paddle.use_compat_guard with the scope of its declaration",
        _where(error, folder),
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        context = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ or context


def _text(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = "; ".join(lines[:3]) or "without a message"
    if isinstance(error, ImportError):
        return text
    return f"{type(error).__name__}: {text}"


def _where(error: BaseException, folder: Path) -> str:
    """The innermost line of the traceback in a library's file, relative to the package's folder."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(folder) and not _is_own(_module_of(frame)):
            found = f"{path.relative_to(folder)}:{line}"
    return found


def _importer(error: BaseException) -> str:
    """The name of the module whose import statement failed."""
    name = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = _module_of(frame)
        if not _is_own(module) and _top(module) not in ("importlib", "paddle"):
            name = module
    return name


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_own(module: str) -> bool:
    """True for the package itself and its private modules, not for an alias of a library."""
    package = _top(__name__)
    return module == package or module.startswith(f"{package}._")


Rule = Callable[[BaseException, Library], "tuple[str, str] | None"]


def _missing_torch(error: BaseException, library: Library) -> tuple[str, str] | None:
    if not isinstance(error, ModuleNotFoundError) or _top(error.name) != "torch":
        return None
    importer = _importer(error)
    top = importer.partition(".")[0]
    scope = ", ".join(sorted(library.compat_scope)) or "nothing"
    if top and top not in library.compat_scope:
        mend = (
            f"{importer} imports torch and is outside the compat scope ({scope}): add {top!r} to "
            f"compat_scope in the declaration of {library.name}"
        )
    else:
        mend = f"the compat scope is {scope}; add the package that imports torch to it"
    return MISSING_MODULE, mend


def _missing_paddle_api(error: BaseException, library: Library) -> tuple[str, str] | None:
    mend = (
        f"{library.name} uses a part of torch that this Paddle does not offer: install a "
        f"Paddle that has it, or replace the use in the Paddle fork of {library.name}"
    )
    if isinstance(error, AttributeError) and _is_paddles(error.obj):
        return MISSING_PADDLE_API, mend
    if isinstance(error, ImportError) and _top(error.name) in ("paddle", "torch"):
        return MISSING_PADDLE_API, mend
    if isinstance(error, AttributeError) and re.search(
        r"module '(paddle|torch)[\w.]*' has no attribute", str(error)
    ):
        return MISSING_PADDLE_API, mend
    return None


def _is_paddles(value: object) -> bool:
    if isinstance(value, ModuleType):
        return _top(value.__name__) in ("paddle", "torch")
    owner = value if isinstance(value, type) else type(value)
    return _top(owner.__module__) == "paddle"


def _missing_module(error: BaseException, library: Library) -> tuple[str, str] | None:
    if not isinstance(error, ModuleNotFoundError):
        return None
    if _top(error.name) in library.modules:
        return MISSING_MODULE, (
            f"the wheel lacks a part of {library.name}: check the artifacts of its declaration, "
            "build again"
        )
    wanted = _wanted(library)
    if wanted:
        return MISSING_MODULE, f"install what {library.name} needs: {wanted}"
    return MISSING_MODULE, (
        f"install the distribution that brings {_top(error.name) or 'it'}, and add it to "
        f"run_requires in the declaration of {library.name}"
    )


def _missing_name(error: BaseException, library: Library) -> tuple[str, str] | None:
    top = _top(error.name) if isinstance(error, ImportError) else ""
    if not top or top in library.modules or "cannot import name" not in str(error):
        return None
    wanted = _wanted(library) or f"state the version in run_requires of {library.name}"
    return (
        MISSING_NAME,
        f"another version of {top} is installed than {library.name} needs: {wanted}",
    )


def _wanted(library: Library) -> str:
    """The command that installs what the library declares to need, or an empty text."""
    wanted = " ".join(f"'{text}'" for text in library.run_requires)
    return f"pip install {wanted}" if wanted else ""


def _circular_import(error: BaseException, library: Library) -> tuple[str, str] | None:
    if not isinstance(error, (ImportError, AttributeError)):
        return None
    if "partially initialized module" not in str(error):
        return None
    return CIRCULAR_IMPORT, (
        f"break the cycle in the sources of {library.name} by the order of its top-level imports"
    )


def _undefined_symbol(error: BaseException, library: Library) -> tuple[str, str] | None:
    match = re.search(r"undefined symbol: (\w+)", str(error))
    if match is None:
        return None
    return UNDEFINED_SYMBOL, (
        f"{_symbol_origin(match.group(1))}; build the wheel again in the environment it is used in"
    )


def _symbol_origin(symbol: str) -> str:
    """Whose symbol it is, by the namespace in its name (Itanium C++ ABI), or by its C prefix."""
    owners = (
        (r"_ZNK?(6paddle|3phi|3pir)|_ZNK?\d*egr", "it belongs to another version of Paddle"),
        (r"_ZNK?(2at|3c10|5torch|8caffe2)", "it belongs to PyTorch's C++ library, not to Paddle's"),
        (r"TVMFFI|_ZNK?3tvm", "it belongs to another version of apache-tvm-ffi"),
        (r"(__)?(cu|cuda|cublas|nccl|nvshmem)[A-Z_]", "it belongs to another version of CUDA"),
        (r"_?Py[A-Z_]", "it belongs to another version of Python"),
        (r"_ZN?K?St|_ZNSt|__cxa", "it belongs to another version of the C++ run-time library"),
    )
    for pattern, owner in owners:
        if re.match(pattern, symbol):
            return owner
    return "the library was built against another version of what defines it"


def _missing_shared_library(error: BaseException, library: Library) -> tuple[str, str] | None:
    match = re.search(r"([\w.+-]+\.so[\w.]*): cannot open shared object file", str(error))
    if match is None:
        return None
    return MISSING_SHARED_LIBRARY, _shared_library_mend(match.group(1), library)


def _shared_library_mend(file_name: str, library: Library) -> str:
    stem = file_name.partition(".so")[0]
    if stem == "libcuda":
        return f"{file_name} is the NVIDIA driver: install it, or use a machine that has it"
    if re.match(r"lib(cu|nv|nccl)", stem):
        return (
            f"{file_name} is of the CUDA run time, which paddlepaddle-gpu for the same CUDA major "
            "brings: install that one, or the wheel for the CUDA of the Paddle that is installed"
        )
    if re.match(r"lib(torch|c10)", stem):
        return f"{library.name} is linked against PyTorch: build it with Paddle's extension tools"
    return f"install the package that holds {file_name}, or have auditwheel put it into the wheel"


def _damaged_shared_library(error: BaseException, library: Library) -> tuple[str, str] | None:
    signs = (
        r"version `[^']+' not found|invalid ELF header|wrong ELF class|file too short"
        r"|ELF load command|does not define module export function"
    )
    if not isinstance(error, (ImportError, OSError)) or not re.search(signs, str(error)):
        return None
    return DAMAGED_SHARED_LIBRARY, (
        "the file was built for another system or changed after its build: install the wheel "
        "again, or build it for this system"
    )


def _no_kernel_image(error: BaseException, library: Library) -> tuple[str, str] | None:
    signs = (
        r"no kernel image is available|cudaErrorNoKernelImageForDevice"
        r"|CUDA_ERROR_NO_BINARY_FOR_GPU"
    )
    if not re.search(signs, str(error)):
        return None
    return NO_KERNEL_IMAGE, (
        f"{library.name} holds no code for the compute capability of this device: build the wheel "
        "with that capability in the cell"
    )


_RULES: tuple[Rule, ...] = (
    _undefined_symbol,
    _missing_shared_library,
    _damaged_shared_library,
    _no_kernel_image,
    _circular_import,
    _missing_torch,
    _missing_paddle_api,
    _missing_module,
    _missing_name,
)


def _top(name: str | None) -> str:
    return (name or "").partition(".")[0]
