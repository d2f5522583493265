"""What a program can call: functions, types and methods, and the operators."""

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from studies.smollm2.interpreter.budget import BITS, ITERATOR, Budget, Refused, whole

METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(
        {
            *("upper", "lower", "title", "capitalize", "swapcase", "strip", "lstrip", "rstrip", "split", "splitlines"),
            *("join", "replace", "startswith", "endswith", "count", "find", "rfind", "index"),
            *("isalpha", "isdigit", "isalnum", "isupper", "islower", "isspace"),
        }
    ),
    list: frozenset(
        {"append", "extend", "insert", "pop", "remove", "reverse", "sort", "index", "count", "copy", "clear"}
    ),
    dict: frozenset({"get", "keys", "values", "items", "pop", "setdefault", "update", "copy"}),
    set: frozenset({"add", "remove", "discard", "union", "intersection", "difference", "update", "copy"}),
    tuple: frozenset({"index", "count"}),
}
_TYPES = (int, float, str, bool, list, tuple, dict, set)
COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, whole: item in whole,
    ast.NotIn: lambda item, whole: item not in whole,
}
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}


class Type:
    """A type as a value: it can be called and asked about, and has no attributes."""

    def __init__(self, of: type, make: Callable[..., Any]) -> None:
        self.of, self.make = of, make

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.make(*arguments, **named)


class Scope(dict[str, Any]):
    def __init__(self, outer: "Scope | None" = None) -> None:
        super().__init__()
        self.outer = outer

    def find(self, name: str) -> Any:
        scope: Scope | None = self
        while scope is not None:
            if name in scope:
                return scope[name]
            scope = scope.outer
        raise NameError(name)


class Library(Budget):
    """Functions and operators whose arguments and results are measured against the budget."""

    def _builtins(self) -> Scope:
        scope = Scope()
        plain = (len, sorted, max, min, abs, _round, divmod, any, all, chr, ord, bin)
        scope.update({function.__name__.lstrip("_"): self._guarded(function) for function in plain})
        scope.update({each.__name__: Type(each, self._guarded(each)) for each in _TYPES})
        lazy: dict[str, Callable[..., Iterable[Any]]] = {
            "map": map,
            "filter": lambda test, items: filter(test if test is not None else bool, items),
            "zip": zip,
            "enumerate": enumerate,
            "reversed": reversed,
        }
        for name, function in lazy.items():
            scope[name] = self._guarded(listed(function))
        scope["range"] = self._range
        scope["sum"] = self._sum
        scope["isinstance"] = _isinstance
        scope["next"] = _next
        scope["print"] = lambda *_, **__: None
        scope["__name__"] = "solution"
        return scope

    def _range(self, *bounds: int) -> range:
        made = range(*bounds)
        self._spend(len(made))
        return made

    def _sum(self, items: Iterable[Any], start: Any = 0) -> Any:
        for item in whole(items):
            start = self._binary(ast.Add(), start, item)
        return start

    def _binary(self, kind: ast.operator, left: Any, right: Any) -> Any:
        self._weigh(left)
        self._weigh(right)
        if type(kind) not in _BINARY:
            raise Refused(f"there is no {type(kind).__name__}")
        if isinstance(kind, ast.Mod) and isinstance(left, str):
            raise Refused("there are no formats")
        if isinstance(kind, ast.Pow) and not (_is_number(left) and _is_number(right) and abs(right) <= BITS):
            raise Refused("the power is too high")
        if isinstance(kind, ast.Mult):
            for whole, times in ((left, right), (right, left)):
                if isinstance(whole, str | list | tuple) and isinstance(times, int):
                    self._spend(len(whole) * max(times, 0))
        return self._weigh(_BINARY[type(kind)](left, right))


def listed(function: Callable[..., Iterable[Any]]) -> Callable[..., Any]:
    """As an iterator over a list: used up once, and equal to no list, as in Python."""
    return lambda *arguments, **named: iter(list(function(*arguments, **named)))


def _isinstance(value: Any, kinds: Any) -> bool:
    several = kinds if isinstance(kinds, tuple) else (kinds,)
    if not all(isinstance(kind, Type) for kind in several):
        raise TypeError("isinstance needs types")
    return isinstance(value, tuple(kind.of for kind in several))


def _next(iterator: Any, *default: Any) -> Any:
    if not isinstance(iterator, ITERATOR):
        raise TypeError("not an iterator")
    return next(iterator, *default)


def _round(number: Any, digits: int | None = None) -> Any:
    if digits is not None and abs(digits) > BITS:
        raise Refused("too many digits")  # of a whole number, Python would raise 10 to that power
    return round(number, digits)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
