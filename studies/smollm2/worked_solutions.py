"""Worked solutions: one line for each operation, and the answer in a box."""

import ast
import re

_SYMBOLS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def worked_equation(equation: str) -> str:
    """( ( 4.0 + 13.0 ) * 15.0 ) → 4 + 13 = 17, then 17 * 15 = 255, then the box."""
    lines: list[str] = []
    answer = _work(ast.parse(equation, mode="eval").body, lines)
    return "\n".join([*lines, f"The answer is \\boxed{{{_figure(answer)}}}."])


def worked_lines(lines: str, answer: str) -> str:
    """GSM8K's solution without its calculator's notes, <<48/2=24>>."""
    return f"{re.sub('<<[^<>]*>>', '', lines)}\nThe answer is \\boxed{{{answer}}}."


def value_of(equation: str) -> float:
    return _work(ast.parse(equation, mode="eval").body, [])


def _work(node: ast.expr, lines: list[str]) -> float:
    """The value of a sum of numbers, each operation written down when both its sides are known."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div()):
            left, right = _work(node.left, lines), _work(node.right, lines)
            symbol = _SYMBOLS[type(node.op)]
            value = {"+": left + right, "-": left - right, "*": left * right, "/": left / (right or 1)}[symbol]
            lines.append(f"{_figure(left)} {symbol} {_figure(right)} = {_figure(value)}")
            return value
    raise ValueError(f"{ast.unparse(node)!r:.60} is not a calculation")


def _figure(value: float) -> str:
    return f"{value:.10g}"
