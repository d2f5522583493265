"""Calls a small Python function from a model's response without ever executing it: a walk over its syntax tree.

What is not listed here does not exist: no imports but of `typing`, no attributes but the methods below, no classes, no
exceptions. Every operation first weighs its operands against one budget of steps, so that no loop, no nesting of
shared lists and no huge number can take long or much memory.
"""

import ast
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

#: Longest text, and most characters of a program.
LENGTH, PROGRAM = 2_000, 4_000
#: Nodes evaluated and values looked at in one call.
STEPS = 10_000
#: Widest whole number, in bits, and deepest recursion.
BITS, DEPTH = 256, 40

_METHODS: Mapping[type, frozenset[str]] = {
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
_ITERATOR: Any = type(iter([]))
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
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
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}


class Refused(Exception):
    """The program has something that this interpreter does not, or takes too long."""


def call(code: str, function: str, arguments: Sequence[Any]) -> Any:
    """The value of `function(*arguments)` as `code` defines it."""
    return Program(code).call(function, arguments)


class _Type:
    """A type as a value: it can be called and asked about, and has no attributes."""

    def __init__(self, of: type, make: Callable[..., Any]) -> None:
        self.of, self.make = of, make

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.make(*arguments, **named)


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Scope(dict[str, Any]):
    def __init__(self, outer: "_Scope | None" = None) -> None:
        super().__init__()
        self.outer = outer

    def find(self, name: str) -> Any:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope:
                return scope[name]
            scope = scope.outer
        raise NameError(name)


class Program:
    """Read once, and called any number of times: each call begins with the program's first line and a full budget."""

    def __init__(self, code: str) -> None:
        if len(code) > PROGRAM:
            raise Refused(f"the program has {len(code)} characters")
        try:
            self.tree = ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise Refused(f"not a program: {error}") from None
        self._known = self._builtins()

    def call(self, function: str, arguments: Sequence[Any]) -> Any:
        """The value of `function(*arguments)`. Raises `Refused`, or what Python would raise."""
        self.steps, self.depth = STEPS, 0
        scope = _Scope(self._known)
        try:
            self._block(self.tree.body, scope)
            value = scope.find(function)(*arguments)
            self._weigh(value)
        except (RecursionError, MemoryError, OverflowError, _Return, _Break, _Continue) as error:
            raise Refused(type(error).__name__) from None
        return value

    # Budget

    def _spend(self, steps: int = 1) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise Refused(f"more than {STEPS} steps")

    def _weigh(self, value: Any) -> Any:
        """Counts all that a value holds, shared parts each time they are met: what a comparison or a copy would."""
        todo = [value]
        while todo:
            self._spend()
            value_ = todo.pop()
            if isinstance(value_, int):
                if value_.bit_length() > BITS:
                    raise Refused("a number is too large")
            elif isinstance(value_, str):
                if len(value_) > LENGTH:
                    raise Refused("a text is too long")
                self._spend(len(value_) // 50)
            elif isinstance(value_, list | tuple | set | range):
                self._spend(len(value_))
                todo.extend(value_)
            elif isinstance(value_, dict):
                self._spend(len(value_))
                todo.extend(value_.keys())
                todo.extend(value_.values())
        return value

    def _guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*arguments: Any, **named: Any) -> Any:
            given = [self._weigh(_whole(each)) for each in arguments]
            options = {name: self._weigh(each) for name, each in named.items()}
            return self._weigh(function(*given, **options))

        return checked

    # What there is to call

    def _builtins(self) -> _Scope:
        scope = _Scope()
        plain = (len, sorted, max, min, abs, _round, divmod, any, all, chr, ord, bin)
        scope.update({function.__name__.lstrip("_"): self._guarded(function) for function in plain})
        scope.update({each.__name__: _Type(each, self._guarded(each)) for each in _TYPES})
        lazy: dict[str, Callable[..., Iterable[Any]]] = {
            "map": map,
            "filter": lambda test, items: filter(test if test is not None else bool, items),
            "zip": zip,
            "enumerate": enumerate,
            "reversed": reversed,
        }
        for name, function in lazy.items():
            scope[name] = self._guarded(_listed(function))
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
        for item in _whole(items):
            start = self._binary(ast.Add(), start, item)
        return start

    def _method(self, node: ast.Attribute, scope: _Scope) -> Callable[..., Any]:
        owner = self._value(node.value, scope)
        if isinstance(owner, _Type):  # map(str.upper, words)
            kind, name = owner.of, node.attr
            if name not in _METHODS.get(kind, ()):
                raise Refused(f"there is no {kind.__name__}.{name}")
            return self._guarded(getattr(kind, name))
        if node.attr not in _METHODS.get(type(owner), ()):
            raise Refused(f"there is no method {node.attr}")
        method = getattr(owner, node.attr)
        if node.attr in ("keys", "values", "items"):
            method = _listed(method)

        def checked(*arguments: Any, **named: Any) -> Any:
            self._weigh(owner)
            result = self._guarded(method)(*arguments, **named)
            self._weigh(owner)  # it may have grown
            return result

        return checked

    # Statements

    def _block(self, body: Sequence[ast.stmt], scope: _Scope) -> None:
        for statement in body:
            self._spend()
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: _Scope) -> None:
        match node:
            case ast.FunctionDef(decorator_list=[]):
                scope[node.name] = self._function(node.args, node.body, scope)
            case ast.Return():
                raise _Return(None if node.value is None else self._value(node.value, scope))
            case ast.Assign():
                value = self._value(node.value, scope)
                for target in node.targets:
                    self._assign(target, value, scope)
            case ast.AnnAssign(value=ast.expr() as given):
                self._assign(node.target, self._value(given, scope), scope)
            case ast.AugAssign(target=ast.Name() | ast.Subscript()):
                self._augment(node, scope)
            case ast.Expr():
                self._value(node.value, scope)
            case ast.If():
                self._block(node.body if self._value(node.test, scope) else node.orelse, scope)
            case ast.For(orelse=[]):
                self._loop(self._bound(node.target, node.iter, scope, scope), node.body, scope)
            case ast.While(orelse=[]):
                self._loop(iter(lambda: bool(self._value(node.test, scope)), False), node.body, scope)
            case ast.Break():
                raise _Break
            case ast.Continue():
                raise _Continue
            case ast.Pass() | ast.ImportFrom(module="typing"):
                pass
            case ast.Assert():
                if not self._value(node.test, scope):
                    raise AssertionError
            case _:
                raise Refused(f"there is no {type(node).__name__}")

    def _loop(self, rounds: Iterator[Any], body: Sequence[ast.stmt], scope: _Scope) -> None:
        for _ in rounds:
            self._spend()
            try:
                self._block(body, scope)
            except _Continue:
                continue
            except _Break:
                break

    def _bound(self, target: ast.expr, source: ast.expr, outer: _Scope, inner: _Scope) -> Iterator[None]:
        """Each item of `source` in turn, under its name."""
        items = self._value(source, outer)
        for item in items if isinstance(items, list) else list(self._weigh(_whole(items))):
            self._assign(target, item, inner)
            yield

    def _assign(self, target: ast.expr, value: Any, scope: _Scope) -> None:
        self._spend()
        match target:
            case ast.Name():
                scope[target.id] = value
            case ast.Tuple() | ast.List():
                values = list(self._weigh(_whole(value)))
                if len(values) != len(target.elts):
                    raise ValueError("not as many values as names")
                for each, part in zip(target.elts, values, strict=True):
                    self._assign(each, part, scope)
            case ast.Subscript():
                owner = self._value(target.value, scope)
                if not isinstance(owner, list | dict):
                    raise TypeError("no item can be assigned")
                owner[self._value(target.slice, scope)] = self._weigh(_whole(value))
                self._weigh(owner)
            case _:
                raise Refused(f"nothing is assigned to {type(target).__name__}")

    def _augment(self, node: ast.AugAssign, scope: _Scope) -> None:
        assert isinstance(node.target, ast.Name | ast.Subscript)
        old = self._value(node.target, scope)
        change = self._value(node.value, scope)
        if isinstance(old, list) and isinstance(node.op, ast.Add):
            change = self._weigh(_whole(change))
            old += change
            self._weigh(old)
            new: Any = old
        else:
            new = self._binary(node.op, old, change)
        self._assign(node.target, new, scope)

    def _function(
        self, parameters: ast.arguments, body: Sequence[ast.stmt] | ast.expr, outer: _Scope
    ) -> Callable[..., Any]:
        if parameters.vararg or parameters.kwarg or parameters.kwonlyargs or parameters.posonlyargs:
            raise Refused("only plain parameters")
        names = [each.arg for each in parameters.args]
        defaults = [self._value(each, outer) for each in parameters.defaults]

        def function(*arguments: Any, **named: Any) -> Any:
            scope = _Scope(outer)
            scope.update(zip(names[len(names) - len(defaults) :], defaults, strict=True))
            scope.update(zip(names, arguments, strict=False))
            scope.update(named)
            if len(arguments) > len(names) or not scope.keys() == set(names):
                raise TypeError("wrong arguments")
            self._spend()
            self.depth += 1
            if self.depth > DEPTH:
                raise Refused(f"more than {DEPTH} calls deep")
            try:
                if isinstance(body, ast.expr):
                    return self._value(body, scope)
                self._block(body, scope)
            except _Return as returned:
                return returned.value
            finally:
                self.depth -= 1
            return None

        return function

    # Expressions

    def _value(self, node: ast.expr, scope: _Scope) -> Any:
        self._spend()
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return self._weigh(value)
            case ast.Name():
                return scope.find(node.id)
            case ast.List():
                return self._weigh(self._items(node.elts, scope))
            case ast.Tuple():
                return self._weigh(tuple(self._items(node.elts, scope)))
            case ast.Set():
                return self._weigh(set(self._items(node.elts, scope)))
            case ast.Dict():
                pairs = zip(node.keys, node.values, strict=True)
                return self._weigh({self._key(key, scope): _whole(self._value(value, scope)) for key, value in pairs})
            case ast.BinOp():
                return self._binary(node.op, self._value(node.left, scope), self._value(node.right, scope))
            case ast.UnaryOp():
                return self._weigh(_UNARY[type(node.op)](self._value(node.operand, scope)))
            case ast.BoolOp():
                return self._either(node, scope)
            case ast.Compare():
                return self._compare(node, scope)
            case ast.IfExp():
                return self._value(node.body if self._value(node.test, scope) else node.orelse, scope)
            case ast.Subscript():
                return self._item(node, scope)
            case ast.Call():
                return self._called(node, scope)
            case ast.Attribute():
                return self._method(node, scope)
            case ast.Lambda():
                return self._function(node.args, node.body, scope)
            case ast.ListComp():
                return self._weigh(self._comprehended(node, scope))
            case ast.SetComp():
                return self._weigh(set(self._comprehended(node, scope)))
            case ast.GeneratorExp():
                return iter(self._weigh(self._comprehended(node, scope)))
            case ast.DictComp():
                return self._weigh(dict(self._comprehended(node, scope)))
            case ast.JoinedStr():
                return self._weigh("".join(self._piece(each, scope) for each in node.values))
            case _:
                raise Refused(f"there is no {type(node).__name__}")

    def _items(self, nodes: Sequence[ast.expr], scope: _Scope) -> list[Any]:
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                items += self._weigh(_whole(self._value(node.value, scope)))
            else:
                items.append(_whole(self._value(node, scope)))
        return items

    def _key(self, node: ast.expr | None, scope: _Scope) -> Any:
        if node is None:
            raise Refused("there is no ** here")
        return self._weigh(self._value(node, scope))

    def _piece(self, node: ast.expr, scope: _Scope) -> str:
        if isinstance(node, ast.FormattedValue):
            if node.format_spec is not None or node.conversion != -1:
                raise Refused("there are no formats")
            return str(self._weigh(_whole(self._value(node.value, scope))))
        return str(self._value(node, scope))

    def _either(self, node: ast.BoolOp, scope: _Scope) -> Any:
        stop = isinstance(node.op, ast.Or)
        value = None
        for each in node.values:
            value = self._value(each, scope)
            if bool(value) is stop:
                break
        return value

    def _compare(self, node: ast.Compare, scope: _Scope) -> Any:
        left = self._value(node.left, scope)
        for kind, right_node in zip(node.ops, node.comparators, strict=True):
            right = _whole(self._value(right_node, scope))
            self._weigh(left)
            self._weigh(right)
            if not _COMPARE[type(kind)](left, right):
                return False
            left = right
        return True

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

    def _item(self, node: ast.Subscript, scope: _Scope) -> Any:
        owner = self._value(node.value, scope)
        if not isinstance(owner, str | list | tuple | dict | range):
            raise TypeError("it has no items")
        if isinstance(node.slice, ast.Slice):
            ends = (node.slice.lower, node.slice.upper, node.slice.step)
            chosen: Any = slice(*(None if end is None else self._value(end, scope) for end in ends))
        else:
            chosen = self._weigh(self._value(node.slice, scope))
        return self._weigh(owner[chosen])

    def _called(self, node: ast.Call, scope: _Scope) -> Any:
        function = self._value(node.func, scope)
        if not callable(function):
            raise TypeError("it cannot be called")
        arguments: list[Any] = []
        for each in node.args:
            if isinstance(each, ast.Starred):
                arguments += self._weigh(_whole(self._value(each.value, scope)))
            else:
                arguments.append(self._value(each, scope))
        named = {}
        for option in node.keywords:
            if option.arg is None:
                raise Refused("there is no ** here")
            named[option.arg] = self._value(option.value, scope)
        return function(*arguments, **named)

    def _comprehended(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, outer: _Scope
    ) -> list[Any]:
        scope = _Scope(outer)
        made: list[Any] = []

        def nest(level: int) -> None:
            if level == len(node.generators):
                self._spend()
                if isinstance(node, ast.DictComp):
                    made.append((self._weigh(self._value(node.key, scope)), _whole(self._value(node.value, scope))))
                else:
                    made.append(_whole(self._value(node.elt, scope)))
                return
            each = node.generators[level]
            for _ in self._bound(each.target, each.iter, scope, scope):
                if all(self._value(test, scope) for test in each.ifs):
                    nest(level + 1)

        nest(0)
        return made


def _whole(value: Any) -> Any:
    """An iterator as the list of what is left of it: nothing may be drawn from it unweighed."""
    return list(value) if isinstance(value, _ITERATOR) else value


def _listed(function: Callable[..., Iterable[Any]]) -> Callable[..., Any]:
    """As an iterator over a list: used up once, and equal to no list, as in Python."""
    return lambda *arguments, **named: iter(list(function(*arguments, **named)))


def _isinstance(value: Any, kinds: Any) -> bool:
    several = kinds if isinstance(kinds, tuple) else (kinds,)
    if not all(isinstance(kind, _Type) for kind in several):
        raise TypeError("isinstance needs types")
    return isinstance(value, tuple(kind.of for kind in several))


def _next(iterator: Any, *default: Any) -> Any:
    if not isinstance(iterator, _ITERATOR):
        raise TypeError("not an iterator")
    return next(iterator, *default)


def _round(number: Any, digits: int | None = None) -> Any:
    if digits is not None and abs(digits) > BITS:
        raise Refused("too many digits")  # of a whole number, Python would raise 10 to that power
    return round(number, digits)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
