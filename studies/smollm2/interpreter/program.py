"""Statements, functions, and the program as a whole."""

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from studies.smollm2.interpreter.budget import DEPTH, PROGRAM, STEPS, Refused, whole
from studies.smollm2.interpreter.expressions import Expressions
from studies.smollm2.interpreter.library import Scope


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class Program(Expressions):
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
        scope = Scope(self._known)
        try:
            self._block(self.tree.body, scope)
            value = scope.find(function)(*arguments)
            self._weigh(value)
        except (RecursionError, MemoryError, OverflowError, _Return, _Break, _Continue) as error:
            raise Refused(type(error).__name__) from None
        return value

    def _block(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        for statement in body:
            self._spend()
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: Scope) -> None:
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

    def _loop(self, rounds: Iterator[Any], body: Sequence[ast.stmt], scope: Scope) -> None:
        for _ in rounds:
            self._spend()
            try:
                self._block(body, scope)
            except _Continue:
                continue
            except _Break:
                break

    def _augment(self, node: ast.AugAssign, scope: Scope) -> None:
        assert isinstance(node.target, ast.Name | ast.Subscript)
        old = self._value(node.target, scope)
        change = self._value(node.value, scope)
        if isinstance(old, list) and isinstance(node.op, ast.Add):
            change = self._weigh(whole(change))
            old += change
            self._weigh(old)
            new: Any = old
        else:
            new = self._binary(node.op, old, change)
        self._assign(node.target, new, scope)

    def _function(
        self, parameters: ast.arguments, body: Sequence[ast.stmt] | ast.expr, outer: Scope
    ) -> Callable[..., Any]:
        if parameters.vararg or parameters.kwarg or parameters.kwonlyargs or parameters.posonlyargs:
            raise Refused("only plain parameters")
        names = [each.arg for each in parameters.args]
        defaults = [self._value(each, outer) for each in parameters.defaults]

        def function(*arguments: Any, **named: Any) -> Any:
            scope = Scope(outer)
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
