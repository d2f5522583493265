"""Runs untrusted Python, and brings back what it computed."""

from trustmopd.evaluation.sandbox.sandbox import run_python

__all__ = ["run_python"]
