"""The static rules on published releases: what was found by hand is found, what was judged false is not.

Places and functions were read in the sources, and the lists of executed modules come from Python itself
(``sys.modules`` after the import, with torch, triton, transformers and CUTLASS installed). See
docs/check-precision.md.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ci.findings import Finding
from ci.integration.analysis import Analysis
from ci.integration.rules import static_findings
from ci.integration.subject import resolve_subjects, tree_of

pytestmark = pytest.mark.network


def _analysis(release: str, cache_dir: Path) -> Analysis:
    (subject,) = resolve_subjects([f"pypi:{release}"], [], {}, cache_dir)
    return Analysis(tree_of(subject, []))


@pytest.fixture(scope="module")
def fla(cache_dir: Path) -> Analysis:
    """The last release that holds the whole of fla in one distribution."""
    return _analysis("flash-linear-attention==0.3.1", cache_dir)


@pytest.fixture(scope="module")
def fla_core(cache_dir: Path) -> Analysis:
    """A release with the late imports that the integration guide speaks of."""
    return _analysis("fla-core==0.5.2", cache_dir)


@pytest.fixture(scope="module")
def quack(cache_dir: Path) -> Analysis:
    return _analysis("quack-kernels==0.6.5", cache_dir)


def _found(analysis: Analysis, rule: str) -> list[Finding]:
    return [item for item in static_findings(analysis) if item.rule == rule]


def _functions(findings: list[Finding]) -> set[tuple[str, str]]:
    """Place and function of findings about late imports, whose subject is module:function:target."""
    return {(item.place, item.subject.split(":")[1]) for item in findings}


CIRCULAR = {
    ("fla/modules/conv/causal_conv1d.py", "causal_conv1d", "fla.modules.conv.cp"),
    ("fla/modules/conv/causal_conv1d.py", "causal_conv1d", "fla.modules.conv.cuda"),
    ("fla/modules/conv/causal_conv1d.py", "causal_conv1d", "fla.modules.conv.triton"),
    ("fla/modules/conv/cp/ops.py", "CausalConv1dFunctionCP.forward", "fla.modules.conv.triton.ops"),
    ("fla/modules/conv/cp/ops.py", "CausalConv1dFunctionCP.backward", "fla.modules.conv.triton.ops"),
    ("fla/modules/conv/cuda/ops.py", "FastCausalConv1dFn.forward", "fla.modules.conv.triton.ops"),
    ("fla/modules/conv/short_conv.py", "ShortConvolution.forward", "fla.modules.conv.causal_conv1d"),
}  # fmt: skip


def test_the_late_imports_that_the_guide_speaks_of_are_found(fla_core: Analysis) -> None:
    """Those whose comment says that they are there to avoid a circular dependency."""
    findings = _found(fla_core, "lazy-submodule-import")
    named = [item for item in findings if "circular dependency" in item.why]
    found = {(item.place, *item.subject.split(":")[1:]) for item in named}
    assert found >= CIRCULAR


def test_every_such_comment_of_the_text_has_its_finding(fla_core: Analysis) -> None:
    """The text decides which there are, not the syntax tree."""
    lines = {(item.place, item.line) for item in _found(fla_core, "lazy-submodule-import")}
    comment = re.compile(r"\s+# Import here to avoid circular dependenc")
    places = [
        (module.place, number + 1)
        for module in fla_core.tree.own()
        for number, line in enumerate(module.lines, 1)
        if comment.match(line)
    ]
    assert len(places) == 5
    assert lines.issuperset(places)


def test_a_core_without_its_extension_imports_none_of_its_modules(fla_core: Analysis) -> None:
    """``import fla`` of fla-core alone executes one module; Python says the same."""
    assert fla_core.reached == {"fla"}
    missing = {item.subject for item in _found(fla_core, "submodule-not-imported")}
    assert {"fla.ops.kda.naive", "fla.modules.parallel"} <= missing


FLA_NOT_IMPORTED = {
    "fla.layers.simple_gla", "fla.modules.grpo", "fla.modules.parallel", "fla.ops.rwkv4", "fla.ops.titans",
    "fla.ops.ttt", "fla.ops.common.chunk_h_parallel", "fla.ops.common.chunk_h_split", "fla.ops.gsa.naive",
    "fla.ops.linear_attn.naive", "fla.ops.rwkv7.channel_mixing", "fla.ops.gated_delta_product.chunk_ref",
}  # fmt: skip


def test_modules_that_no_init_imports_are_found(fla: Analysis) -> None:
    missing = {item.subject for item in _found(fla, "submodule-not-imported")}
    assert missing >= FLA_NOT_IMPORTED
    # Exported by layers/__init__.py, ops/__init__.py and modules/__init__.py.
    assert missing.isdisjoint({"fla.layers.abc", "fla.ops.gla", "fla.modules.mlp"})


def test_what_importing_fla_executes_is_what_python_executes(fla: Analysis) -> None:
    """With torch, triton and transformers there, sys.modules holds 259 modules of fla."""
    assert len(fla.definite) == 259
    # Taken only where transformers has no class of that name.
    assert fla.reached - fla.definite == {"fla.models.modeling_layers"}


def test_late_imports_of_fla_layers_are_found(fla: Analysis) -> None:
    findings = _found(fla, "lazy-submodule-import")
    assert _functions(findings) >= {
        ("fla/layers/mamba.py", "Mamba.__init__"),
        ("fla/layers/mamba2.py", "Mamba2.__init__"),
    }


def test_type_checking_imports_and_fall_backs_of_fla_are_told_apart(fla: Analysis) -> None:
    findings = static_findings(fla)
    lines = {(item.place, item.line) for item in findings}
    abc = fla.tree.modules["fla.layers.abc"]
    typing = next(item for item in abc.imports if item.module == "fla.models.utils")
    assert typing.when == "typing"
    assert (abc.place, typing.line) not in lines
    model = fla.tree.modules["fla.models.abc.modeling_abc"]
    fallback = next(item for item in model.imports if item.module == "fla.models.modeling_layers")
    assert fallback.when == "fallback"
    assert (model.place, fallback.line) not in lines


QUACK_LATE_TORCH = {
    ("quack/cache/async_compile.py", "_detect_arch_env"),
    ("quack/epilogue/frontend.py", "_validate_packed_tensor"),
    ("quack/epilogue/frontend.py", "EpiMod.gemm"),
    ("quack/epilogue/frontend.py", "EpiMod._alloc_outputs"),
    ("quack/epilogue/frontend.py", "EpiMod._alloc_sinks"),
    ("quack/epilogue/frontend.py", "EpiMod._iface_execute"),
    ("quack/epilogue/frontend.py", "EpiMod.__call__"),
    ("quack/epilogue/ops.py", "RowVecReduce.host_finalize_varlen"),
    ("quack/epilogue/rotary.py", "_ff_turns_head"),
    ("quack/epilogue/rotary.py", "make_interleaved_inv_freq"),
    ("quack/epilogue/rotary.py", "make_mrope_inv_freq"),
    ("quack/epilogue/rotary.py", "make_xpos_log_scale"),
    ("quack/epilogue/rotary.py", "make_interleaved_cos_sin"),
    ("quack/gemm_tvm_ffi_utils.py", "compute_cu_tiles_m"),
    ("quack/rotary.py", "_register_ordered_effect"),
}


def test_late_imports_of_torch_in_quack_are_found(quack: Analysis) -> None:
    assert _functions(_found(quack, "lazy-torch-import")) >= QUACK_LATE_TORCH


def test_lazy_exports_of_quack_are_found(quack: Analysis) -> None:
    """PEP 562 functions that import on first access."""
    subjects = {item.subject for item in _found(quack, "module-getattr-import")}
    assert subjects >= {
        "quack.epilogue:__getattr__:quack.epilogue.frontend",
        "quack.operand_transform:__getattr__:quack.operand_transform.frontend",
        "quack.operand_transform:__getattr__:quack.operand_transform.host",
    }


def test_a_fall_back_of_an_import_is_not_caught_itself(quack: Analysis) -> None:
    """_register_ordered_effect imports one name in the try, another in its handler."""
    levels = {
        item.subject.rpartition(":")[2]: item.level
        for item in _found(quack, "lazy-torch-import")
        if item.place == "quack/rotary.py"
    }
    assert levels == {
        "torch._library.custom_ops": "note",
        "torch._higher_order_ops.effects": "error",
    }


QUACK_EXECUTED = {
    "quack", "quack.autotuner", "quack.bench", "quack.bench.bench_utils", "quack.cache",
    "quack.cache.async_compile", "quack.cache.jit", "quack.compile_utils", "quack.copy_utils",
    "quack.cross_entropy", "quack.cute_dsl_utils", "quack.dsl", "quack.dsl.cute_tensor",
    "quack.dsl.cute_tensor_indexing", "quack.dsl.mixed_constexpr_if", "quack.dsl.torch_library_op",
    "quack.layout_utils", "quack.pipeline", "quack.reduce", "quack.reduction_base", "quack.rmsnorm",
    "quack.rmsnorm_config", "quack.rounding", "quack.softmax", "quack.utils",
}  # fmt: skip


def test_what_importing_quack_executes_is_what_python_executes(quack: Analysis) -> None:
    assert quack.definite == QUACK_EXECUTED
    # Behind an environment variable in quack/__init__.py.
    assert quack.reached - quack.definite == {"quack.dsl.cute_dsl_ptxas"}


def test_modules_of_quack_that_its_init_does_not_import_are_found(quack: Analysis) -> None:
    # What one import would bring is told with it.
    found = (item.subject for item in _found(quack, "submodule-not-imported"))
    missing = {name for subject in found for name in quack.closure_of([subject])} - quack.reached
    assert missing >= {
        "quack.topk",
        "quack.linear",
        "quack.mlp",
        "quack.gemm_w4",
        "quack.transform",
    }
    assert missing.isdisjoint(QUACK_EXECUTED)


def test_documentation_of_something_else_makes_no_kept_exception(quack: Analysis) -> None:
    """Docstrings with "CI proxy legs" or "module-level call" do not speak of the import below them."""
    for rule in ("undocumented-exception", "exception-without-context", "untested-exception"):
        assert _found(quack, rule) == []


def test_an_import_of_the_own_ancestor_is_no_late_import(quack: Analysis) -> None:
    """A package is there whenever a function of its submodule runs."""
    places = {(item.place, item.subject) for item in static_findings(quack)}
    assert not any(place == "quack/cache/jit.py" and ":quack" in what for place, what in places)


@pytest.mark.parametrize("name", ["fla", "quack"])
def test_no_cycle_of_a_release_that_imports_is_called_broken(
    name: str, request: pytest.FixtureRequest
) -> None:
    """Both import: an error on a cycle would be false."""
    findings = _found(request.getfixturevalue(name), "circular-import")
    assert [item for item in findings if item.level == "error"] == []


def test_cycles_of_quack_are_told_with_their_way_round(quack: Analysis) -> None:
    ways = {item.subject for item in _found(quack, "circular-import")}
    assert "quack → quack.rmsnorm → quack.autotuner → quack" in ways
