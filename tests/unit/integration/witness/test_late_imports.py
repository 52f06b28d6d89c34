"""Imports of torch, and of modules that need it, that come when the guard has closed."""

from __future__ import annotations

import pytest

from ci.findings import Finding
from ci.integration.witness import RUN_TIME_RULES, WitnessResult, witness_findings
from tests.unit.integration.witness.conftest import PACKAGE, Watch

REAL_TORCH = {"torch/__init__.py": "__version__ = '2.0'\ndef add(x, y):\n    return 'of torch'\n"}


def judged(result: WitnessResult) -> tuple[Finding, ...]:
    return witness_findings(result, "Seeded", {})


def rules(result: WitnessResult) -> list[str]:
    return [finding.rule for finding in judged(result)]


def proxy_is_off(result: WitnessResult) -> bool:
    last = result.states[-1]
    return last.finders_of_proxy == 0 and not last.proxy_modules


def test_a_clean_library_gives_nothing(watch: Watch) -> None:
    result = watch({"seeded/__init__.py": PACKAGE})

    assert judged(result) == ()
    assert (result.ending, result.exercised, result.not_exercised) == ("", ("double",), ())
    assert [module.name for module in result.imported] == ["seeded"]
    assert (result.late_torch, result.late_modules) == ((), ())
    assert proxy_is_off(result)


HIDDEN = {
    "import_module": 'import importlib\n    return importlib.import_module("to" + "rch").add(x, x)',
    "bound_before": 'return import_module("to" + "rch").add(x, x)',
    "dunder_import": 'return __import__(chr(116) + "orch").add(x, x)',
    "exec": 'names = {}\n    exec("import tor" + "ch", names)\n    return names["torch"].add(x, x)',
    "statement": "import torch.nn\n    return torch.add(x, x)",
    "from_import": "from torch import nn\n    return nn",
    "machinery": 'import importlib\n    return importlib._bootstrap._gcd_import("torch").add(x, x)',
    "thread": (
        "import threading\n"
        "    def work():\n"
        "        threading.Event().wait(0.5)\n"
        '        __import__("to" + "rch")\n'
        "    thread = threading.Thread(target=work)\n"
        "    thread.start()"
    ),
}


@pytest.mark.parametrize("body", HIDDEN.values(), ids=HIDDEN)
def test_torch_asked_for_in_a_function_is_found_however_it_is_written(
    watch: Watch, body: str
) -> None:
    text = f"import torch\nfrom importlib import import_module\n\ndef double(x):\n    {body}\n"
    result = watch({"seeded/__init__.py": text})

    (finding,) = judged(result)
    assert finding.rule == "late-torch-import"
    assert finding.place == "seeded/__init__.py"
    (line,) = {number for number, row in enumerate(text.splitlines(), 1) if _asks(row)}
    assert finding.line == line
    assert "no torch is installed" in finding.why
    assert finding.level == "error"
    assert proxy_is_off(result)


def _asks(row: str) -> bool:
    words = ("torch.nn", "from torch", "import_module(", "__import__(", "exec(", "_gcd_import(")
    return any(word in row for word in words)


@pytest.mark.parametrize("body", [HIDDEN["import_module"], HIDDEN["exec"], HIDDEN["dunder_import"]])
def test_the_real_torch_that_comes_silently_is_told(watch: Watch, body: str) -> None:
    text = f"import torch\n\ndef double(x):\n    {body}\n"
    result = watch({"seeded/__init__.py": text}, REAL_TORCH)

    (late,) = judged(result)
    assert late.rule == "late-torch-import"
    assert "it gave the real torch without a word" in late.why
    assert [item.outcome for item in result.late_torch] == ["real"]
    assert result.exercised == ("double",)


@pytest.mark.parametrize("body", [HIDDEN["import_module"], HIDDEN["dunder_import"]])
def test_the_real_torch_is_told_also_where_it_was_imported_before(watch: Watch, body: str) -> None:
    """No finder sees an import that ``sys.modules`` answers."""
    text = f"import torch\n\ndef double(x):\n    {body}\n"
    result = watch({"seeded/__init__.py": text}, REAL_TORCH, preload=("torch",))

    assert rules(result) == ["late-torch-import"]
    assert [item.outcome for item in result.late_torch] == ["real"]


def test_the_real_torch_may_import_its_own_parts_when_it_is_called(watch: Watch) -> None:
    torch = "def add(x, y):\n    import torch.parts\n    return x\n"
    result = watch(
        {
            "seeded/__init__.py": "import sys\n\ndef double(x):\n    return sys.modules['torch'].add(x, x)\n"
        },
        {"torch/__init__.py": torch, "torch/parts.py": ""},
        preload=("torch",),
    )

    assert [late.caller.owner for late in result.late_torch] == ["torch"]
    assert "late-torch-import" not in rules(result)


def test_a_call_that_leaves_the_proxy_on_helps_no_later_one(watch: Watch) -> None:
    text = """
        import paddle
        import torch

        def double(x):
            paddle.enable_compat()

        def triple(x):
            import torch
        """
    result = watch(
        {"seeded/__init__.py": text},
        public_names=("double", "triple"),
        exercises={"double": "1", "triple": "1"},
    )

    assert [(late.stage, late.outcome) for late in result.late_torch] == [
        ("exercise triple", "failed")
    ]
    assert proxy_is_off(result)


def test_a_module_getattr_that_imports_is_found(watch: Watch) -> None:
    result = watch(
        {
            "seeded/__init__.py": """
                import torch
                from seeded import ops

                def __getattr__(name):
                    if name == "tool":
                        import torch as t
                        return t.add
                    raise AttributeError(name)
                """,
            "seeded/ops.py": """
                import seeded

                def double(x):
                    return seeded.tool(x, x)
                """,
        },
        public_names=("seeded.ops:double",),
        exercises={"seeded.ops:double": "paddle.ones([2])"},
    )

    (finding,) = judged(result)
    assert (finding.rule, finding.place, finding.line) == (
        "late-torch-import",
        "seeded/__init__.py",
        7,
    )
    assert finding.subject == "seeded.__getattr__: torch"


def test_a_public_name_that_imports_whenever_it_is_asked_for_is_found(watch: Watch) -> None:
    """Under the loader's guard it works; a user asks when that has closed."""
    text = """
        import torch

        def __getattr__(name):
            if name == "double":
                import torch as t
                return lambda x: t.add(x, x)
            raise AttributeError(name)
        """
    result = watch({"seeded/__init__.py": text})

    (finding,) = judged(result)
    assert (finding.rule, finding.line) == ("late-torch-import", 6)
    assert "access double" in finding.why
    assert result.missing_names == {}


def test_who_imported_a_module_under_the_guard_is_recorded(watch: Watch) -> None:
    """In the order in which they were ready; a look for a module is no import of it."""
    result = watch(
        {
            "seeded/__init__.py": "import torch\nimport helper\nfrom seeded.ops import double\n",
            "seeded/ops.py": (
                "import importlib\n"
                "importlib.util.find_spec('seeded.hidden')\n"
                "from seeded import plain\n"
                "importlib.import_module('seeded.hid' + 'den')\n"
                "from torch import add as double\n"
            ),
            "seeded/plain.py": "import seeded_core\n",
            "seeded/hidden.py": "",
            "seeded_core.py": "",
        },
        {"helper/__init__.py": "import torch\n"},
        modules=("seeded", "seeded_core"),
        scope=("seeded", "helper"),
        exercises={},
    )

    assert [
        (i.name, i.importer.module, i.importer.line, i.importer.owner) for i in result.imported
    ] == [
        ("helper", "seeded", 2, "library"),
        ("seeded_core", "seeded.plain", 1, "library"),
        ("seeded.plain", "seeded.ops", 3, "library"),
        ("seeded.hidden", "seeded.ops", 4, "library"),
        ("seeded.ops", "seeded", 3, "library"),
        ("seeded", "__main__", result.imported[-1].importer.line, "witness"),
    ]
    assert judged(result) == ()


def test_a_late_submodule_that_needs_torch_is_one_finding_at_the_import(watch: Watch) -> None:
    result = watch(
        {
            "seeded/__init__.py": (
                "import torch\n\ndef double(x):\n    from seeded import tail\n    return tail.f(x)\n"
            ),
            "seeded/tail.py": "import torch\n\ndef f(x):\n    return torch.add(x, x)\n",
        }
    )

    (finding,) = judged(result)
    assert (finding.rule, finding.place, finding.line) == (
        "late-submodule-import",
        "seeded/__init__.py",
        4,
    )
    assert "seeded.tail" in finding.why
    assert result.exercised == ()


def test_a_late_submodule_of_a_dependency_in_the_scope_is_found(watch: Watch) -> None:
    result = watch(
        {
            "seeded/__init__.py": "import helper\n\ndef double(x):\n    return helper.f(x)\n",
        },
        {
            "helper/__init__.py": "import torch\n\ndef f(x):\n    import helper.tail\n    return x\n",
            "helper/tail.py": "import torch\n",
        },
        scope=("seeded", "helper"),
    )

    (finding,) = judged(result)
    assert (finding.rule, finding.place, finding.line) == (
        "late-submodule-import",
        "helper/__init__.py",
        4,
    )


def test_a_submodule_that_only_a_public_name_brings_is_found(watch: Watch) -> None:
    result = watch(
        {"seeded/__init__.py": "", "seeded/ops.py": PACKAGE},
        public_names=("seeded.ops:double",),
        exercises={"seeded.ops:double": "paddle.ones([2])"},
    )

    (finding,) = judged(result)
    assert finding.rule == "late-submodule-import"
    assert "when the public name 'seeded.ops:double' is asked for" in finding.why
    assert result.exercised == ("seeded.ops:double",)


def test_a_late_submodule_without_torch_is_recorded_and_is_no_fault(watch: Watch) -> None:
    result = watch(
        {
            "seeded/__init__.py": (
                "import torch\n\ndef double(x):\n    from . import table\n    return x\n"
            ),
            "seeded/table.py": "ROWS = 3\n",
        }
    )

    assert judged(result) == ()
    assert [(late.name, late.outcome) for late in result.late_modules] == [
        ("seeded.table", "module")
    ]


def test_an_import_inside_a_guard_of_its_own_is_no_fault(watch: Watch) -> None:
    text = """
        import torch
        import paddle

        def double(x):
            with paddle.use_compat_guard(scope="seeded.tail", silent=True):
                from seeded import tail
            with paddle.use_compat_guard(silent=True):
                import torch
            return tail.f(x)
        """
    result = watch({"seeded/__init__.py": text, "seeded/tail.py": PACKAGE + "f = double\n"})

    assert judged(result) == ()
    assert result.exercised == ("double",)
    assert all(late.own_context for late in result.late_torch)
    assert len(result.late_torch) == 2
    assert proxy_is_off(result)


def test_looking_for_torch_is_no_import(watch: Watch) -> None:
    text = """
        import importlib.util
        import torch

        def double(x):
            importlib.util.find_spec("torch")
            return x
        """
    assert judged(watch({"seeded/__init__.py": text})) == ()


def test_a_foreign_package_that_asks_for_torch_is_a_note(watch: Watch) -> None:
    result = watch(
        {"seeded/__init__.py": "import torch\nimport other\n\ndouble = other.f\n"},
        {
            "other/__init__.py": (
                "def f(x):\n    try:\n        import torch\n    except ImportError:\n        return x\n"
            )
        },
    )

    (finding,) = judged(result)
    assert (finding.rule, finding.level, finding.line) == ("late-torch-import", "note", 3)


def test_every_rule_has_a_text_of_the_guide() -> None:
    assert len({rule.name for rule in RUN_TIME_RULES}) == len(RUN_TIME_RULES) == 8
    assert all("(guide: " in rule.guide for rule in RUN_TIME_RULES)
