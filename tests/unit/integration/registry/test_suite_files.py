"""What a test file is read to hold: which guards cover which uses, and whether it compares numbers."""

from __future__ import annotations

import textwrap

import pytest

from ci.integration.registry_rules.suite_files import SuiteFile, read_suite_file
from ci.registry import REPOSITORY

PLACE = "tests/single_card_tests/custom_ops/test_x.py"


def read(text: str, place: str = PLACE) -> SuiteFile:
    found = read_suite_file(textwrap.dedent(text), place)
    assert not found.unreadable
    return found


def covered(text: str) -> list[bool]:
    """Of each use of `alpha`, in the order of lines, whether alpha's guard covers it."""
    uses = sorted(read(text).uses, key=lambda use: use.line)
    return ["alpha" in use.covered for use in uses if use.module == "alpha"]


GUARDED = {
    "pytestmark": """
        import paddlefleet_ops as ops, pytest
        pytestmark = pytest.mark.skipif(not ops.is_alpha_available(), reason="r")
        def test():
            from paddlefleet_ops import alpha
        """,
    "pytestmark list": """
        import paddlefleet_ops, pytest
        needs = pytest.mark.skipif(not paddlefleet_ops.is_alpha_available(), reason="r")
        pytestmark = [pytest.mark.gpu, needs]
        def test():
            import paddlefleet_ops.alpha.sub
        """,
    "named mark": """
        from paddlefleet_ops import is_alpha_available
        import pytest
        HAS = is_alpha_available()
        needs_alpha = pytest.mark.skipif(condition=not HAS, reason="r")
        @needs_alpha
        def test():
            import alpha
        """,
    "class decorator": """
        import unittest, paddlefleet_ops
        @unittest.skipUnless(paddlefleet_ops.is_alpha_available(), "r")
        class T(unittest.TestCase):
            def setUp(self):
                from paddlefleet_ops import alpha
            def test(self):
                paddlefleet_ops.alpha.run()
        """,
    "skipIf or": """
        import unittest, paddlefleet_ops
        class T(unittest.TestCase):
            @unittest.skipIf(SLOW or not paddlefleet_ops.is_alpha_available(), "r")
            def test(self):
                from paddlefleet_ops.alpha import run
        """,
    "class pytestmark": """
        import pytest, paddlefleet_ops
        class TestAlpha:
            pytestmark = pytest.mark.skipif(not paddlefleet_ops.is_alpha_available(), reason="r")
            def test(self):
                from paddlefleet_ops import alpha
        """,
    "setUpClass": """
        import unittest, paddlefleet_ops
        class T(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                if not paddlefleet_ops.is_alpha_available():
                    raise unittest.SkipTest("r")
            def test(self):
                from paddlefleet_ops import alpha
        """,
    "early skip": """
        import pytest, paddlefleet_ops
        def test():
            if not paddlefleet_ops.is_alpha_available():
                pytest.skip("r")
            from paddlefleet_ops import alpha
        """,
    "early skipTest": """
        import unittest, paddlefleet_ops
        class T(unittest.TestCase):
            def test(self):
                if paddlefleet_ops.is_alpha_available() is False:
                    self.skipTest("r")
                from paddlefleet_ops import alpha
        """,
    "module skip": """
        import pytest, paddlefleet_ops
        if not paddlefleet_ops.is_alpha_available():
            pytest.skip("r", allow_module_level=True)
        from paddlefleet_ops import alpha
        """,
    "module branch": """
        import pytest, paddlefleet_ops
        if paddlefleet_ops.is_alpha_available():
            from paddlefleet_ops import alpha
        """,
    "fixture": """
        import pytest, paddlefleet_ops
        @pytest.fixture
        def alpha():
            if not paddlefleet_ops.is_alpha_available():
                pytest.skip("r")
            return __import__("importlib").import_module("paddlefleet_ops.alpha")
        """,
    "helper of guarded tests": """
        import pytest, paddlefleet_ops
        def made():
            from paddlefleet_ops import alpha
            return alpha.make()
        @pytest.mark.skipif(not paddlefleet_ops.is_alpha_available(), reason="r")
        def test():
            made()
        """,
    "a condition worked out in a try": """
        import unittest
        try:
            import paddlefleet_ops
            HAS = paddlefleet_ops.is_alpha_available() and layer.kernel is not None
        except (ImportError, RuntimeError):
            HAS = False
        @unittest.skipUnless(CUDA and HAS, "r")
        class T(unittest.TestCase):
            def test(self):
                paddlefleet_ops.alpha.run()
        """,
    "coping import and a guard": """
        import pytest
        from paddlefleet_ops import is_alpha_available
        try:
            from paddlefleet_ops import alpha
        except (ImportError, RuntimeError):
            alpha = None
        pytestmark = pytest.mark.skipif(not is_alpha_available(), reason="r")
        """,
}
UNGUARDED = {
    "nothing": """
        def test():
            from paddlefleet_ops import alpha
        """,
    "module import before the mark": """
        import paddlefleet_ops, pytest
        from paddlefleet_ops import alpha
        pytestmark = pytest.mark.skipif(not paddlefleet_ops.is_alpha_available(), reason="r")
        """,
    "the wrong way round": """
        import paddlefleet_ops, pytest
        pytestmark = pytest.mark.skipif(paddlefleet_ops.is_alpha_available(), reason="r")
        def test():
            from paddlefleet_ops import alpha
        """,
    "and": """
        import paddlefleet_ops, pytest
        @pytest.mark.skipif(SLOW and not paddlefleet_ops.is_alpha_available(), reason="r")
        def test():
            from paddlefleet_ops import alpha
        """,
    "either of two": """
        import paddlefleet_ops, pytest
        EITHER = paddlefleet_ops.is_alpha_available() or paddlefleet_ops.is_beta_available()
        @pytest.mark.skipif(not EITHER, reason="r")
        def test():
            from paddlefleet_ops import alpha
        """,
    "a condition that may be true without it": """
        import paddlefleet_ops, pytest
        if ASKED:
            HAS = paddlefleet_ops.is_alpha_available()
        else:
            HAS = True
        @pytest.mark.skipif(not HAS, reason="r")
        def test():
            from paddlefleet_ops import alpha
        """,
    "another library's guard": """
        import paddlefleet_ops, pytest
        pytestmark = pytest.mark.skipif(not paddlefleet_ops.is_beta_available(), reason="r")
        def test():
            paddlefleet_ops.alpha.run()
        """,
    "another test's guard": """
        import paddlefleet_ops, pytest
        @pytest.mark.skipif(not paddlefleet_ops.is_alpha_available(), reason="r")
        def test_one(): ...
        def test_two():
            import alpha.sub
        """,
    "passes instead of skipping": """
        import paddlefleet_ops
        def test():
            if not paddlefleet_ops.is_alpha_available():
                return
            from paddlefleet_ops import alpha
        """,
    "asks after the use": """
        import paddlefleet_ops, pytest
        def test():
            from paddlefleet_ops import alpha
            if not paddlefleet_ops.is_alpha_available():
                pytest.skip("r")
        """,
    "asks and goes on": """
        import paddlefleet_ops
        def test():
            if not paddlefleet_ops.is_alpha_available():
                print("no alpha")
            from paddlefleet_ops import alpha
        """,
    "importorskip": """
        import pytest
        alpha = pytest.importorskip("paddlefleet_ops.alpha")
        """,
    "coping import alone": """
        try:
            from paddlefleet_ops import alpha
        except (ImportError, RuntimeError):
            alpha = None
        """,
    "in the other branch": """
        import paddlefleet_ops
        def test():
            if paddlefleet_ops.is_alpha_available():
                pass
            else:
                from paddlefleet_ops import alpha
        """,
    "in a with block": """
        import paddlefleet_ops
        def test():
            with something():
                paddlefleet_ops.alpha.run()
        """,
}


@pytest.mark.parametrize("name", GUARDED)
def test_a_guard_covers_what_comes_after_it(name: str) -> None:
    found = covered(GUARDED[name])
    assert found
    assert all(found)


@pytest.mark.parametrize("name", UNGUARDED)
def test_what_no_guard_covers_is_seen(name: str) -> None:
    found = covered(UNGUARDED[name])
    assert found
    assert not any(found)


def test_the_import_suite_of_the_manifest_uses_no_library_by_name() -> None:
    place = "tests/single_card_tests/custom_ops/test_ops_import.py"
    found = read_suite_file((REPOSITORY / place).read_bytes(), place)
    assert not found.unreadable
    assert not {use.module for use in found.uses} & {"fused_norm", "ep_exchange", "fla", "quack"}


def test_a_file_that_is_no_python_says_so() -> None:
    found = read_suite_file(b"def test(:\n", PLACE)
    assert found.unreadable
    assert found.uses == ()


COMPARING = (
    "np.testing.assert_allclose(got, want)",
    "assert np.allclose(a, b)",
    "assert paddle.allclose(a, b, rtol=1e-5).item()",
    "torch.testing.assert_close(a, b)",
    "assert got == pytest.approx(want)",
    "assert (a - b).abs().max() < 1e-3",
    "diff = np.abs(a - b).max() / np.abs(b).max()\nassert diff < 1e-5",
    "assert calc_diff(a, b) < 1e-5",
    "self.assertAlmostEqual(a, b, places=5)",
    "self.assertLess(np.linalg.norm(a - b), 1e-3)",
    "np.testing.assert_array_equal(a, b)",
    "assert a.equal_all(b)",
)
NOT_COMPARING = (
    "assert out.shape == [2, 3]",
    "assert out is not None",
    "np.testing.assert_allclose(out, out)",
    "assert a.equal_all(a)",
    "assert np.isfinite(out).all()",
    "assert len(a) - len(b) < 3",
    "diff = abs(a - b)\nprint(diff)",
    "assert elapsed < 1.0",
)


@pytest.mark.parametrize("text", COMPARING)
def test_comparisons_of_numbers_are_seen(text: str) -> None:
    assert read(f"def test():\n{textwrap.indent(text, '    ')}\n").compares


@pytest.mark.parametrize("text", NOT_COMPARING)
def test_what_compares_no_results_is_told_apart(text: str) -> None:
    assert not read(f"def test():\n{textwrap.indent(text, '    ')}\n").compares
