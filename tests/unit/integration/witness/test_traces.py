"""What an import, or a call, leaves behind in the process."""

from __future__ import annotations

import pytest

from ci.integration.witness import witness_findings
from tests.unit.integration.witness.conftest import PACKAGE, Watch


def told(watch: Watch, *arguments: object, **changed: object) -> list[tuple[str, str, str]]:
    """Rule, level and subject of every finding."""
    result = watch(*arguments, **changed)
    return [(f.rule, f.level, f.subject) for f in witness_findings(result, "Seeded", {})]


ENABLES = {
    "for everything": "import paddle\npaddle.enable_compat()\n",
    "for a scope": 'import paddle\npaddle.enable_compat(scope={"seeded"}, silent=True)\n',
    "a guard that is never closed": (
        "import paddle\n"
        'guard = paddle.use_compat_guard(scope={"other"}, silent=True)\n'
        "guard.__enter__()\n"
    ),
}


@pytest.mark.parametrize("text", ENABLES.values(), ids=ENABLES)
def test_a_proxy_left_on_by_the_import_is_one_finding(watch: Watch, text: str) -> None:
    found = told(watch, {"seeded/__init__.py": PACKAGE + text})

    assert found == [("proxy-left-on", "error", "import")]


def test_a_proxy_left_on_does_not_hide_late_imports(watch: Watch) -> None:
    text = "import paddle\npaddle.enable_compat()\ndef double(x):\n    import torch\n    return x\n"

    assert told(watch, {"seeded/__init__.py": text}) == [
        ("late-torch-import", "error", "seeded.double: torch"),
        ("proxy-left-on", "error", "import"),
    ]


def test_a_proxy_left_on_by_a_call_is_found_at_that_call_only(watch: Watch) -> None:
    text = """
        import paddle
        import torch

        def double(x):
            paddle.enable_compat()
            return torch.add(x, x)

        def triple(x):
            return torch.add(double(x), x)

        def same(x):
            return x
        """
    exercises = dict.fromkeys(("same", "double"), "paddle.ones([2])")
    found = told(
        watch,
        {"seeded/__init__.py": text},
        public_names=("double", "same"),
        exercises={**exercises, "triple": "paddle.ones([2])"},
    )

    assert found == [
        ("proxy-left-on", "error", "exercise double"),
        ("proxy-left-on", "error", "exercise triple"),
    ]


def test_a_finder_of_the_library_is_a_trace_and_a_foreign_one_a_note(watch: Watch) -> None:
    finder = "import sys\nclass Finder:\n    def find_spec(self, *_):\n        return None\n"
    found = told(
        watch,
        {
            "seeded/__init__.py": (
                f"{finder}import other\nsys.meta_path.append(Finder())\n{PACKAGE}"
            )
        },
        {"other/__init__.py": f"{finder}sys.meta_path.insert(0, Finder)\n"},
    )

    assert sorted(found) == [
        ("import-leaves-traces", "error", "import: seeded.Finder"),
        ("import-leaves-traces", "note", "import: other.Finder"),
    ]


def test_the_real_torch_that_the_import_brings_is_a_trace(watch: Watch) -> None:
    text = "import paddle\npaddle.disable_compat()\npaddle.disable_compat()\n"
    found = told(
        watch,
        {"seeded/__init__.py": text + PACKAGE},
        {"torch/__init__.py": "def add(x, y):\n    return x\n"},
    )

    assert found == [("import-leaves-traces", "error", "import: real torch")]


TRACES = {
    "sys.path": ("import sys\nsys.path.append('/opt/seeded')\n", "sys.path", "warning"),
    "a proxy that stays": (
        "import sys\nimport torch\nsys.modules['another_torch'] = torch\n",
        "proxy modules",
        "error",
    ),
    "kept out": (
        "from paddle.compat.proxy import TORCH_PROXY_BLOCKED_MODULES as b\nb.add('triton')\n",
        "modules that the proxy never serves",
        "error",
    ),
    "overrides": (
        "from paddle.compat.proxy import GLOBAL_OVERRIDES as g\ng['torch.seeded'] = None\n",
        "overrides of torch's names",
        "error",
    ),
}


@pytest.mark.parametrize(("text", "subject", "level"), TRACES.values(), ids=TRACES)
def test_other_traces(watch: Watch, text: str, subject: str, level: str) -> None:
    found = told(watch, {"seeded/__init__.py": text + PACKAGE})

    assert found == [("import-leaves-traces", level, f"import: {subject}")]
