"""One budget for all that a program does: every value is measured against it before and after an
operation."""

from collections.abc import Callable
from typing import Any

#: Longest text, and most characters of a program.
LENGTH, PROGRAM = 2_000, 4_000
#: Nodes evaluated and values looked at in one call.
STEPS = 10_000
#: Widest whole number, in bits, and deepest recursion.
BITS, DEPTH = 256, 40
ITERATOR: Any = type(iter([]))


class Refused(Exception):
    """The program has something that this interpreter does not, or takes too long."""


class Budget:
    """Steps that are left; `weigh` spends them on values."""

    steps: int

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
            given = [self._weigh(whole(each)) for each in arguments]
            options = {name: self._weigh(each) for name, each in named.items()}
            return self._weigh(function(*given, **options))

        return checked


def whole(value: Any) -> Any:
    """An iterator as the list of what is left of it: nothing may be drawn from it that is not measured
    against the budget."""
    return list(value) if isinstance(value, ITERATOR) else value
