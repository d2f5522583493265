"""Calls a small Python function from a model's response without ever executing it: a walk over its syntax tree.

What is not listed here does not exist: no imports but of `typing`, no attributes but the methods below, no classes, no
exceptions. Every operation first measures its operands against one budget of steps, so that no loop, no nesting of
shared lists and no huge number can take long or much memory.
"""

from collections.abc import Sequence
from typing import Any

from studies.smollm2.interpreter.budget import DEPTH, PROGRAM, Refused
from studies.smollm2.interpreter.program import Program

__all__ = ["DEPTH", "PROGRAM", "Program", "Refused", "call"]


def call(code: str, function: str, arguments: Sequence[Any]) -> Any:
    """The value of `function(*arguments)` as `code` defines it."""
    return Program(code).call(function, arguments)
