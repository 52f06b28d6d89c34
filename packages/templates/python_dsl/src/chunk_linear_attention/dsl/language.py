"""The scan compiler: the source of one step becomes the source of a loop over all steps.

A kernel is a Python function with a role for each parameter, given as its annotation, which the
compiler reads from the source:

- ``Step``: an array whose first axis is time; the kernel sees the slice of the current step;
- ``Carry``: an array that every step updates in place (exactly one);
- ``Uniform``: a value that stays the same;
- ``Constant``: known when compiling; an ``if`` on it leaves only the branch taken, and arguments
  that only the other branch used are not needed.

Statements: assignment, augmented assignment, ``if`` on a constant, and a final ``return``, whose
value is the output of the step. Expressions: arithmetic and the intrinsics below.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

Step: TypeAlias = Any
Carry: TypeAlias = Any
Uniform: TypeAlias = Any
Constant: TypeAlias = Any
Output: TypeAlias = Any

Value: TypeAlias = bool | int | float | str  # of a constant

ROLES = ("Step", "Carry", "Uniform", "Constant")


def exp(x: Array) -> Array:
    """``e ** x``, element by element."""
    result: Array = np.exp(x)
    return result


def lift(x: Array) -> Array:
    """``[...]`` to ``[..., 1, 1]``: a number per head becomes a factor of its matrix."""
    return x[..., None, None]


def outer(a: Array, b: Array) -> Array:
    """``[..., K]`` and ``[..., V]`` to ``[..., K, V]``."""
    result: Array = a[..., :, None] * b[..., None, :]
    return result


def dot(row: Array, matrix: Array) -> Array:
    """``[..., K]`` and ``[..., K, V]`` to ``[..., V]``."""
    result: Array = np.matmul(row[..., None, :], matrix)[..., 0, :]
    return result


INTRINSICS: dict[str, Callable[..., Array]] = {
    "dot": dot,
    "exp": exp,
    "lift": lift,
    "outer": outer,
}


class KernelError(Exception):
    """A kernel uses something outside the language; the message names the line."""


class Scan:
    """A kernel: ``specialise`` compiles it, ``source`` shows what is compiled."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = function.__name__
        self.__doc__ = function.__doc__
        self._tree = _parse(function)
        self.roles = {arg.arg: _role(self.name, arg) for arg in self._tree.args.args}
        carries = [name for name, role in self.roles.items() if role == "Carry"]
        if len(carries) != 1:
            raise KernelError(
                f"{self.name}: exactly one parameter must be a Carry; found {carries}"
            )
        self.carry = carries[0]
        self._compiled: dict[tuple[tuple[str, Value], ...], Callable[..., None]] = {}

    def source(self, **constants: Value) -> str:
        """The generated function: ``(out, *arguments)``, ``out`` with time as its first axis.

        Raises:
            KernelError: the constants are not the kernel's, or the kernel leaves the language.

        """
        return ast.unparse(self._generate(constants))

    def specialise(self, **constants: Value) -> Callable[..., None]:
        """The compiled loop for these constants; compiled once for each set of them."""
        key = tuple(sorted(constants.items()))
        if key not in self._compiled:
            namespace: dict[str, Any] = {"__builtins__": {"range": range}, **INTRINSICS}
            source = self.source(**constants)
            # Generated above from the node types that _Lowering admits; no builtin but range.
            exec(compile(source, f"<scan {self.name}>", "exec"), namespace)  # noqa: S102
            self._compiled[key] = namespace[self.name]
        return self._compiled[key]

    def _generate(self, constants: dict[str, Value]) -> ast.Module:
        wanted = {name for name, role in self.roles.items() if role == "Constant"}
        if set(constants) != wanted:
            raise KernelError(f"{self.name} takes the constants {sorted(wanted)}")
        body = _Lowering(self.name, self.roles, constants).block(self._tree.body)
        used = {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name)}
        parameters = ["out", *(name for name in self.roles if name in used)]
        arguments = ast.arguments([], [ast.arg(p) for p in parameters], None, [], [], None, [])
        loop = ast.parse("for t_ in range(out.shape[0]): pass").body[0]
        assert isinstance(loop, ast.For)
        loop.body = body
        function = ast.parse(f"def {self.name}(): pass").body[0]
        assert isinstance(function, ast.FunctionDef)
        function.args, function.body = arguments, [loop]
        return ast.fix_missing_locations(ast.Module([function], []))


def scan(function: Callable[..., Any]) -> Scan:
    """Decorator: makes a kernel of a function.

    Raises:
        KernelError: its source cannot be read, or a parameter has no role.

    """
    return Scan(function)


def _parse(function: Callable[..., Any]) -> ast.FunctionDef:
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except OSError as error:
        raise KernelError(f"{function.__name__}: a kernel must be written in a file") from error
    tree = ast.parse(source).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise KernelError(f"{function.__name__}: a kernel must be a plain function")
    return tree


def _role(kernel: str, parameter: ast.arg) -> str:
    role = parameter.annotation.id if isinstance(parameter.annotation, ast.Name) else ""
    if role not in ROLES:
        raise KernelError(f"{kernel}: parameter {parameter.arg} needs a role: {', '.join(ROLES)}")
    return role


class _Lowering(ast.NodeTransformer):
    """One step to the body of the loop; every node that is not named here is refused."""

    def __init__(self, kernel: str, roles: dict[str, str], constants: dict[str, Value]) -> None:
        self._kernel = kernel
        self._roles = roles
        self._constants = constants
        self._locals: set[str] = set()

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for statement in statements:
            lowered = self.visit(statement)
            out.extend(lowered if isinstance(lowered, list) else [lowered])
        return out

    def generic_visit(self, node: ast.AST) -> ast.AST:
        line = getattr(node, "lineno", "?")
        raise KernelError(f"{self._kernel}, line {line}: {type(node).__name__} is not supported")

    def visit_Expr(self, node: ast.Expr) -> list[ast.stmt]:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return []  # a docstring
        self.generic_visit(node)
        return []

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        test = self.visit(node.test)
        if not isinstance(test, ast.Constant):
            raise KernelError(f"{self._kernel}, line {node.lineno}: `if` needs a constant")
        return self.block(node.body if test.value else node.orelse)

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        if node.value is None:
            raise KernelError(f"{self._kernel}, line {node.lineno}: a step must return its output")
        return ast.Assign([_at_step("out", ast.Store())], self.visit(node.value))

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        target = node.targets[0]
        if len(node.targets) != 1 or not isinstance(target, ast.Name) or target.id in self._roles:
            raise KernelError(f"{self._kernel}, line {node.lineno}: assign to one new name")
        value = self.visit(node.value)
        self._locals.add(target.id)
        return ast.Assign([ast.Name(target.id, ast.Store())], value)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        name = node.target.id if isinstance(node.target, ast.Name) else ""
        if self._roles.get(name) != "Carry" and name not in self._locals:
            raise KernelError(f"{self._kernel}, line {node.lineno}: only the carry is updated")
        return ast.AugAssign(ast.Name(name, ast.Store()), node.op, self.visit(node.value))

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        return ast.BinOp(self.visit(node.left), node.op, self.visit(node.right))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        return ast.UnaryOp(node.op, self.visit(node.operand))

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in INTRINSICS or node.keywords:
            known = ", ".join(sorted(INTRINSICS))
            raise KernelError(f"{self._kernel}, line {node.lineno}: call one of {known}")
        return ast.Call(ast.Name(name, ast.Load()), [self.visit(a) for a in node.args], [])

    def visit_Name(self, node: ast.Name) -> ast.expr:
        role = self._roles.get(node.id)
        if role is None and node.id not in self._locals:
            raise KernelError(f"{self._kernel}, line {node.lineno}: unknown name {node.id}")
        if role == "Constant":
            return ast.Constant(self._constants[node.id])
        return _at_step(node.id, ast.Load()) if role == "Step" else ast.Name(node.id, ast.Load())


def _at_step(name: str, context: ast.expr_context) -> ast.expr:
    return ast.Subscript(ast.Name(name, ast.Load()), ast.Name("t_", ast.Load()), context)
