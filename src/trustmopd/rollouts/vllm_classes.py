"""Keep vLLM's compiler out of the student's classes.

Where vLLM has no code of its own for an architecture (SmolLM3 is one), it runs transformers' classes, and rewrites the
outermost one for its compiler: base classes, `__init__`, `__call__`. Every other model of that class in the process,
student and teachers, would then fail at its first forward.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def rewritten_apart(student: nn.Module, started: Callable[[], nn.Module]) -> Iterator[None]:
    """A class of the student's that gets new base classes inside, as vLLM's compiler gives it, is put back. What was
    changed in it goes to a subclass, for the modules of the `started` engine."""
    classes = {each for module in student.modules() for each in type(module).__mro__ if issubclass(each, nn.Module)}
    before = {each: (each.__bases__, dict(vars(each))) for each in classes}
    try:
        yield
        moved = _restore(before)
        for module in started().modules() if moved else ():
            if type(module) in moved:
                module.__class__ = moved[type(module)]
    finally:
        _restore(before)


def _restore(before: dict[type, tuple[tuple[type, ...], dict[str, Any]]]) -> dict[type, type]:
    """The classes as they were; and for each that was rewritten, a subclass as it was rewritten."""
    moved = {}
    for each, (bases, names) in before.items():
        if each.__bases__ == bases:
            continue
        added = [base for base in each.__bases__ if base not in bases]
        changed = {name: value for name, value in vars(each).items() if name not in names or value is not names[name]}
        each.__bases__ = bases
        for name in changed:
            if name in names:
                setattr(each, name, names[name])
            else:
                delattr(each, name)
        moved[each] = type(each)(each.__name__, (each, *added), {**changed, "__module__": each.__module__})
    return moved
