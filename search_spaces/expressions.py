"""Constraints that a user writes: `tensor_parallel * pipeline_parallel <= world_size`.

Python's grammar, and of that arithmetic, comparisons, and/or/not, `in` lists, min, max and abs: what is
not named here is refused, and nothing is ever executed.
"""

import ast
import functools
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search_spaces.knob import KnobValue, written

_LONGEST = 1000
_WORDS = {"true": True, "false": False}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs}
_ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_ORDER: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ALLOWED = "numbers, texts, names, + - * / // %, comparisons, and, or, not, in, min, max, abs"

Values = Mapping[str, KnobValue]
_Part = Callable[[Values], Any]


class Unreadable(ValueError):
    """An expression that is none, or holds what is not allowed.

    Attributes:
        column: from 1 on.
    """

    def __init__(self, problem: str, column: int) -> None:
        super().__init__(problem)
        self.column = column


class Mixed(ValueError):
    """Values of kinds that an operation is not for, such as `4 + 'a'`."""


@dataclass(frozen=True)
class Expression:
    """A condition on named values.

    Attributes:
        text: as it was written.
        columns: of the names that it asks for, each where it occurs first, from 1 on.
    """

    text: str
    columns: Mapping[str, int]
    _holds: _Part

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names that it asks for, in the order in which they occur."""
        return tuple(self.columns)

    def holds(self, values: Values) -> bool:
        """Return whether the condition holds; it does not where it divides by zero.

        Args:
            values: of all names; others may be among them.

        Raises:
            Mixed: it makes no sense for values of such kinds.
        """
        try:
            return _truth(self._holds(values))
        except ZeroDivisionError:
            return False

    def broken(self, values: Values) -> str:
        """Return why it does not hold, in words; empty: it does."""
        why = "does not hold"
        try:
            if self.holds(values):
                return ""
        except Mixed as mixed:
            why = f"makes no sense ({mixed})"
        shown = ", ".join(f"{name}={written(values[name])}" for name in self.names)
        return f"the constraint `{self.text}` {why}: {shown}" if shown else f"`{self.text}` {why}"


@functools.lru_cache(maxsize=1024)
def parse(text: str) -> Expression:
    """Return the condition in a text.

    Raises:
        Unreadable: there is none.
    """
    if len(text) > _LONGEST:
        raise Unreadable(f"longer than {_LONGEST} characters", _LONGEST + 1)
    # Where lines end means nothing here, and Python takes what is indented for a block.
    line = "".join(" " if one.isspace() else one for one in text)
    indent = len(line) - len(line.lstrip())
    reader = _Reader(line.lstrip(), indent)
    condition = reader.condition()
    return Expression(" ".join(text.split()), reader.columns, condition)


class _Reader:
    def __init__(self, line: str, indent: int) -> None:
        self._line = line
        self._indent = indent
        self.columns: dict[str, int] = {}

    def condition(self) -> _Part:
        root = self._root()
        part = self._part(root)
        if not _may_be_true(root):
            raise self._refused("is no condition: compare it with something", root)
        return part

    def _root(self) -> ast.expr:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what is refused below
                return ast.parse(self._line, mode="eval").body
        except SyntaxError as error:
            behind = len(self._line) + 1  # where no place is told
            column = min(error.offset or behind, behind) + self._indent
            text = f"is no expression ({error.msg.split('. ')[0]})"
            raise Unreadable(text, column) from None
        except (ValueError, RecursionError, MemoryError):
            raise Unreadable("is no expression", 1 + self._indent) from None

    def _refused(self, problem: str, node: ast.expr) -> Unreadable:
        return Unreadable(problem, self._column(node))

    def _column(self, node: ast.expr) -> int:
        before = self._line.encode()[: node.col_offset].decode(errors="ignore")
        return len(before) + 1 + self._indent

    def _part(self, node: ast.expr) -> _Part:
        kinds: dict[type, Callable[[Any], _Part]] = {
            ast.Constant: self._constant,
            ast.Name: self._name,
            ast.BoolOp: self._several,
            ast.UnaryOp: self._unary,
            ast.BinOp: self._arithmetic,
            ast.Compare: self._compare,
            ast.Call: self._call,
        }
        kind = kinds.get(type(node))
        if kind is None:
            raise self._refused(f"holds what is not allowed; allowed are {_ALLOWED}", node)
        return kind(node)

    def _constant(self, node: ast.Constant) -> _Part:
        value = node.value
        if not isinstance(value, bool | int | float | str):
            raise self._refused("may hold numbers, texts, true and false only", node)
        return lambda _: value

    def _name(self, node: ast.Name) -> _Part:
        name = node.id
        if name in _WORDS:
            return lambda _: _WORDS[name]
        self.columns.setdefault(name, self._column(node))
        return lambda values: values[name]

    def _several(self, node: ast.BoolOp) -> _Part:
        parts = [self._part(one) for one in node.values]
        every = all if isinstance(node.op, ast.And) else any
        return lambda values: every(_truth(part(values)) for part in parts)

    def _unary(self, node: ast.UnaryOp) -> _Part:
        part = self._part(node.operand)
        if isinstance(node.op, ast.Not):
            return lambda values: not _truth(part(values))
        if isinstance(node.op, ast.USub):
            return lambda values: -_number(part(values))
        raise self._refused(f"holds what is not allowed; allowed are {_ALLOWED}", node)

    def _arithmetic(self, node: ast.BinOp) -> _Part:
        work = _ARITHMETIC.get(type(node.op))
        if work is None:
            raise self._refused(f"holds what is not allowed; allowed are {_ALLOWED}", node)
        left, right = self._part(node.left), self._part(node.right)
        return lambda values: work(_number(left(values)), _number(right(values)))

    def _compare(self, node: ast.Compare) -> _Part:
        left, tests = self._part(node.left), []
        for how, operand in zip(node.ops, node.comparators, strict=True):
            tests.append((self._test(how, operand), self._operand(how, operand)))

        def holds(values: Values) -> bool:
            last = left(values)
            for test, operand in tests:
                following = operand(values)
                if not test(last, following):
                    return False
                last = following
            return True

        return holds

    def _test(self, how: ast.cmpop, operand: ast.expr) -> Callable[[Any, Any], bool]:
        if isinstance(how, ast.Eq | ast.NotEq):
            return _same if isinstance(how, ast.Eq) else lambda one, other: not _same(one, other)
        if isinstance(how, ast.In | ast.NotIn):
            return (
                _within
                if isinstance(how, ast.In)
                else lambda one, several: not _within(one, several)
            )
        order = _ORDER.get(type(how))
        if order is None:
            raise self._refused("compares with == and !=, not with `is`", operand)
        return lambda one, other: order(*_comparable(one, other))

    def _operand(self, how: ast.cmpop, node: ast.expr) -> _Part:
        if not isinstance(how, ast.In | ast.NotIn):
            return self._part(node)
        if not isinstance(node, ast.List | ast.Tuple | ast.Set):
            raise self._refused("wants a list behind `in`, such as [1, 2]", node)
        several = [self._part(one) for one in node.elts]
        return lambda values: [part(values) for part in several]

    def _call(self, node: ast.Call) -> _Part:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in FUNCTIONS or node.keywords:
            raise self._refused(f"may call {', '.join(FUNCTIONS)} only", node)
        if not node.args or (name == "abs") != (len(node.args) == 1):
            wanted = "one argument" if name == "abs" else "at least two arguments"
            raise self._refused(f"{name} takes {wanted}", node)
        function, parts = FUNCTIONS[name], [self._part(one) for one in node.args]
        return lambda values: function(*(_number(part(values)) for part in parts))


def _may_be_true(node: ast.expr) -> bool:
    """Return whether a part can come to true or false, as the values of a name decide."""
    if isinstance(node, ast.BoolOp):
        return all(map(_may_be_true, node.values))
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not) and _may_be_true(node.operand)
    return isinstance(node, ast.Compare | ast.Name)


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise Mixed(f"{_shown(value)} is neither true nor false")


def _number(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise Mixed(f"{_shown(value)} is no number")


def _comparable(one: Any, other: Any) -> tuple[Any, Any]:
    if isinstance(one, str) and isinstance(other, str):
        return one, other
    return _number(one), _number(other)


def _same(one: Any, other: Any) -> bool:
    # True == 1 in Python: a boolean is not a number here.
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _within(one: Any, several: Sequence[Any]) -> bool:
    return any(_same(one, other) for other in several)


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else written(value)
