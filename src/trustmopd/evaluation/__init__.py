"""Did it work? Benchmarks, graders, the sandbox for generated code, and scores. Light to import: graders import their
libraries when they grade."""

from trustmopd.evaluation.benchmark import Benchmark, Grade, Unavailable
from trustmopd.evaluation.benchmarks import get_benchmark

__all__ = ["Benchmark", "Grade", "Unavailable", "get_benchmark"]
