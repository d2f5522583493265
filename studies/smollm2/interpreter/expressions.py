"""The value of an expression, and the names that comprehensions and assignments give."""

import ast
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from studies.smollm2.interpreter.budget import Refused, whole
from studies.smollm2.interpreter.library import COMPARE, METHODS, UNARY, Library, Scope, Type, listed


class Expressions(Library, ABC):
    @abstractmethod
    def _function(
        self, parameters: ast.arguments, body: Sequence[ast.stmt] | ast.expr, outer: Scope
    ) -> Callable[..., Any]:
        """A lambda, too, is made as a function is."""

    def _value(self, node: ast.expr, scope: Scope) -> Any:
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
                return self._weigh({self._key(key, scope): whole(self._value(value, scope)) for key, value in pairs})
            case ast.BinOp():
                return self._binary(node.op, self._value(node.left, scope), self._value(node.right, scope))
            case ast.UnaryOp():
                return self._weigh(UNARY[type(node.op)](self._value(node.operand, scope)))
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

    def _items(self, nodes: Sequence[ast.expr], scope: Scope) -> list[Any]:
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                items += self._weigh(whole(self._value(node.value, scope)))
            else:
                items.append(whole(self._value(node, scope)))
        return items

    def _key(self, node: ast.expr | None, scope: Scope) -> Any:
        if node is None:
            raise Refused("there is no ** here")
        return self._weigh(self._value(node, scope))

    def _piece(self, node: ast.expr, scope: Scope) -> str:
        if isinstance(node, ast.FormattedValue):
            if node.format_spec is not None or node.conversion != -1:
                raise Refused("there are no formats")
            return str(self._weigh(whole(self._value(node.value, scope))))
        return str(self._value(node, scope))

    def _either(self, node: ast.BoolOp, scope: Scope) -> Any:
        stop = isinstance(node.op, ast.Or)
        value = None
        for each in node.values:
            value = self._value(each, scope)
            if bool(value) is stop:
                break
        return value

    def _compare(self, node: ast.Compare, scope: Scope) -> Any:
        left = self._value(node.left, scope)
        for kind, right_node in zip(node.ops, node.comparators, strict=True):
            right = whole(self._value(right_node, scope))
            self._weigh(left)
            self._weigh(right)
            if not COMPARE[type(kind)](left, right):
                return False
            left = right
        return True

    def _item(self, node: ast.Subscript, scope: Scope) -> Any:
        owner = self._value(node.value, scope)
        if not isinstance(owner, str | list | tuple | dict | range):
            raise TypeError("it has no items")
        if isinstance(node.slice, ast.Slice):
            ends = (node.slice.lower, node.slice.upper, node.slice.step)
            chosen: Any = slice(*(None if end is None else self._value(end, scope) for end in ends))
        else:
            chosen = self._weigh(self._value(node.slice, scope))
        return self._weigh(owner[chosen])

    def _called(self, node: ast.Call, scope: Scope) -> Any:
        function = self._value(node.func, scope)
        if not callable(function):
            raise TypeError("it cannot be called")
        arguments: list[Any] = []
        for each in node.args:
            if isinstance(each, ast.Starred):
                arguments += self._weigh(whole(self._value(each.value, scope)))
            else:
                arguments.append(self._value(each, scope))
        named = {}
        for option in node.keywords:
            if option.arg is None:
                raise Refused("there is no ** here")
            named[option.arg] = self._value(option.value, scope)
        return function(*arguments, **named)

    def _comprehended(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, outer: Scope
    ) -> list[Any]:
        scope = Scope(outer)
        made: list[Any] = []

        def nest(level: int) -> None:
            if level == len(node.generators):
                self._spend()
                if isinstance(node, ast.DictComp):
                    made.append((self._weigh(self._value(node.key, scope)), whole(self._value(node.value, scope))))
                else:
                    made.append(whole(self._value(node.elt, scope)))
                return
            each = node.generators[level]
            for _ in self._bound(each.target, each.iter, scope, scope):
                if all(self._value(test, scope) for test in each.ifs):
                    nest(level + 1)

        nest(0)
        return made

    def _method(self, node: ast.Attribute, scope: Scope) -> Callable[..., Any]:
        owner = self._value(node.value, scope)
        if isinstance(owner, Type):  # map(str.upper, words)
            kind, name = owner.of, node.attr
            if name not in METHODS.get(kind, ()):
                raise Refused(f"there is no {kind.__name__}.{name}")
            return self._guarded(getattr(kind, name))
        if node.attr not in METHODS.get(type(owner), ()):
            raise Refused(f"there is no method {node.attr}")
        method = getattr(owner, node.attr)
        if node.attr in ("keys", "values", "items"):
            method = listed(method)

        def checked(*arguments: Any, **named: Any) -> Any:
            self._weigh(owner)
            result = self._guarded(method)(*arguments, **named)
            self._weigh(owner)  # it may have grown
            return result

        return checked

    def _bound(self, target: ast.expr, source: ast.expr, outer: Scope, inner: Scope) -> Iterator[None]:
        """Each item of `source` in turn, under its name."""
        items = self._value(source, outer)
        for item in items if isinstance(items, list) else list(self._weigh(whole(items))):
            self._assign(target, item, inner)
            yield

    def _assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        self._spend()
        match target:
            case ast.Name():
                scope[target.id] = value
            case ast.Tuple() | ast.List():
                values = list(self._weigh(whole(value)))
                if len(values) != len(target.elts):
                    raise ValueError("not as many values as names")
                for each, part in zip(target.elts, values, strict=True):
                    self._assign(each, part, scope)
            case ast.Subscript():
                owner = self._value(target.value, scope)
                if not isinstance(owner, list | dict):
                    raise TypeError("no item can be assigned")
                owner[self._value(target.slice, scope)] = self._weigh(whole(value))
                self._weigh(owner)
            case _:
                raise Refused(f"nothing is assigned to {type(target).__name__}")
