"""The rules of PaddleFleet's integration guide that the checklist applies, as data.

A rule of the check holds one of the texts below, so a finding can say which sentence of the guide is
behind it. Headings are the guide's own words, in its language; the sentences are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class GuideRule:
    """One rule of the guide: the heading that it is found under, and what it demands."""

    heading: str
    sentence: str

    @property
    def text(self) -> str:
        """The rule as one line, with its heading."""
        return f"{self.sentence} (guide: {self.heading})"


_HOW_IT_WORKS = "集成机制"
_STEP_SUBMODULE = "第一步 挂 submodule 并注册构建信息"
_STEP_DEPENDENCIES = "第二步 声明依赖并忽略产物目录"
_STEP_LOADER = "第三步 在 paddlefleet_ops/__init__.py 写加载逻辑"
_EAGER = "关键约束 compat guard 内的 eager import"
_LAZY = "需要修掉的两类 proxy-sensitive lazy import"
_KEPT = "可以保留 lazy import 的边界"
_CYCLES = "circular import 的取舍"
_STEP_TESTS = "第四步 加测试并做本地验证"
_CHECKLIST = "集成前自查清单"
_KINDS = "按库类型对照模板 PR"

GUIDE: Mapping[str, GuideRule] = MappingProxyType(
    {
        "eager-import": GuideRule(
            _EAGER,
            "Every module that depends on the compat proxy is initialised inside the guard block of the "
            "first import, because the proxy is on in that block only.",
        ),
        "submodules-imported": GuideRule(
            _LAZY,
            "A package's __init__ imports, level by level, every submodule that depends on the proxy; one "
            "that is imported later gets its torch outside the guard.",
        ),
        "no-late-import": GuideRule(
            _LAZY,
            "Imports of torch, and of submodules that depend on the proxy, stand at module level: an "
            "import in a function body runs when the guard may have closed.",
        ),
        "kept-exception": GuideRule(
            _KEPT,
            "A late import may stay only when the module cannot be initialised under the proxy, and then "
            "it is in the smallest function, out of reach of package initialisation, with its compat "
            "context made at the call, no state left behind, and a comment with reason, trigger path and "
            "condition for removal, and with a test of both paths.",
        ),
        "no-leaked-state": GuideRule(
            _KEPT,
            "A temporary proxy, a swapped module and the state of the guard end with the call that made "
            "them; a cached import result must stay right for later calls.",
        ),
        "circular-import": GuideRule(
            _CYCLES,
            "A cycle is resolved by the order of imports (with isort: off and isort: on) or by module "
            "boundaries, never by a late import that hides it.",
        ),
        "compat-guard": GuideRule(
            _STEP_LOADER,
            "New code switches the proxy on with use_compat_guard, which restores the state before it; "
            "enable_compat is not to be added anywhere.",
        ),
        "scope": GuideRule(
            _STEP_LOADER,
            "The scope of the guard lists the library and every dependency that imports torch while it is "
            "loaded; one that is missing is loaded without the proxy.",
        ),
        "one-namespace": GuideRule(
            _HOW_IT_WORKS,
            "A library is imported under its top-level name and attached as paddlefleet_ops.<lib>, so no "
            "two libraries can own one name.",
        ),
        "loader-unchanged": GuideRule(
            _CYCLES,
            "Import problems of a library are mended in its fork; the common way of loading is not changed "
            "for a single library.",
        ),
        "builds-alone": GuideRule(
            _CHECKLIST,
            "The migrated branch of a library builds, is imported and passes its smallest tests by itself, "
            "before it is integrated.",
        ),
        "submodule-pinned": GuideRule(
            _STEP_SUBMODULE,
            "A library comes in as a git submodule below third_party, pinned to one commit of its Paddle "
            "fork: neither a copy nor a pip dependency.",
        ),
        "dependencies-by-kind": GuideRule(
            _STEP_DEPENDENCIES,
            "Build dependencies go to the build requirements, run-time dependencies to the requirements of "
            "the wheel, and CI installs what the build needs.",
        ),
        "artifacts-ignored": GuideRule(
            _STEP_DEPENDENCIES,
            "Folders that artifacts are collected into are ignored by git.",
        ),
        "three-test-layers": GuideRule(
            _STEP_TESTS,
            "A library has an import smoke test, and functional tests placed by the number of cards.",
        ),
        "availability-guard": GuideRule(
            _STEP_TESTS,
            "Tests of a library are skipped by is_<lib>_available(), and by nothing else.",
        ),
        "multi-card-test": GuideRule(
            _STEP_TESTS,
            "An expert-parallel communication library is verified by a multi-card test that is registered "
            "in tests/test_configs.yaml.",
        ),
        "precision-test": GuideRule(
            _KINDS,
            "A CUDA library behind a compute capability has a test that compares its precision with an "
            "existing implementation.",
        ),
        "pip-exception": GuideRule(
            _KINDS,
            "A pip dependency instead of a submodule is the exception of tilelang-paddle; another one "
            "needs a reason that is as clear.",
        ),
    }
)
"""Every rule by its name."""

EAGER_IMPORT = GUIDE["eager-import"].text
SUBMODULES_IMPORTED = GUIDE["submodules-imported"].text
NO_LATE_IMPORT = GUIDE["no-late-import"].text
KEPT_EXCEPTION = GUIDE["kept-exception"].text
NO_LEAKED_STATE = GUIDE["no-leaked-state"].text
CIRCULAR_IMPORT = GUIDE["circular-import"].text
COMPAT_GUARD = GUIDE["compat-guard"].text
SCOPE = GUIDE["scope"].text
ONE_NAMESPACE = GUIDE["one-namespace"].text
LOADER_UNCHANGED = GUIDE["loader-unchanged"].text
BUILDS_ALONE = GUIDE["builds-alone"].text
SUBMODULE_PINNED = GUIDE["submodule-pinned"].text
DEPENDENCIES_BY_KIND = GUIDE["dependencies-by-kind"].text
ARTIFACTS_IGNORED = GUIDE["artifacts-ignored"].text
THREE_TEST_LAYERS = GUIDE["three-test-layers"].text
AVAILABILITY_GUARD = GUIDE["availability-guard"].text
MULTI_CARD_TEST = GUIDE["multi-card-test"].text
PRECISION_TEST = GUIDE["precision-test"].text
PIP_EXCEPTION = GUIDE["pip-exception"].text
