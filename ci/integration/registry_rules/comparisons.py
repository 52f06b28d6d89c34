"""Whether a test compares numbers: the calls that do, and assertions on a difference."""

from __future__ import annotations

import ast

# numpy.testing, torch.testing, paddle, math, unittest and pytest.
_CALLS = frozenset(
    {
        "assert_allclose", "allclose", "isclose", "assert_close", "assert_array_equal",
        "assert_array_almost_equal", "assert_almost_equal", "assert_array_max_ulp",
        "assert_array_almost_equal_nulp", "array_equal", "equal_all", "assertAlmostEqual",
        "assert_array_less",
    }
)  # fmt: skip
_SIZES = frozenset({"abs", "absolute", "norm", "fabs"})
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def compares_numbers(tree: ast.AST) -> bool:
    """True when ``tree`` holds a numeric comparison of two different things."""
    names = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _is_difference(node.value, frozenset())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return any(_compares(node, frozenset(names)) for node in ast.walk(tree))


def _compares(node: ast.AST, names: frozenset[str]) -> bool:
    """``names`` are variables that hold a difference."""
    if isinstance(node, ast.Call):
        name = called(node)
        if name == "approx":
            return bool(node.args)
        if name in ("assertLess", "assertLessEqual", "assertGreater"):
            return any(_is_difference(item, names) for item in node.args)
        return name in _CALLS and not _with_itself(node)
    if isinstance(node, ast.Assert):
        return any(
            any(isinstance(order, _ORDERS) for order in inner.ops)
            and any(_is_difference(item, names) for item in (inner.left, *inner.comparators))
            for inner in ast.walk(node.test)
            if isinstance(inner, ast.Compare)
        )
    return False


def _with_itself(node: ast.Call) -> bool:
    """``assert_allclose(out, out)`` proves nothing."""
    if isinstance(node.func, ast.Attribute) and len(node.args) == 1:
        return ast.dump(node.func.value) == ast.dump(node.args[0])
    return len(node.args) >= 2 and ast.dump(node.args[0]) == ast.dump(node.args[1])


def _is_difference(node: ast.expr, names: frozenset[str]) -> bool:
    """The size of a difference: ``abs(a - b)``, ``(a - b).abs().max() / c``, ``calc_diff(a, b)``."""
    inside = list(ast.walk(node))
    if any(isinstance(item, ast.Name) and item.id in names for item in inside):
        return True
    names_called = {called(item) for item in inside if isinstance(item, ast.Call)}
    if any(name.endswith(("diff", "difference", "error")) for name in names_called):
        return True
    subtracts = any(isinstance(item, ast.BinOp) and isinstance(item.op, ast.Sub) for item in inside)
    return subtracts and bool(_SIZES & names_called)


def called(node: ast.Call) -> str:
    """The last part of what is called, also where it is a method of an expression."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
