"""Sandboxed programs a second, for trivial programs: what the sandbox itself costs.

python benchmarks/bench_sandbox.py                       # from 1, 2 and 4 threads
python benchmarks/bench_sandbox.py --threads 2 --programs 500
"""

import os
import platform
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Annotated

import typer
from record import append
from rich.console import Console
from rich.table import Table

from trustmopd.evaluation.sandbox.sandbox import run_python

RESULTS = Path(__file__).parent / "results" / "sandbox.csv"


def main(
    threads: Annotated[str, typer.Option(help="How many programs at a time, one case for each.")] = "1,2,4",
    programs: Annotated[int, typer.Option(help="Programs a case.")] = 200,
    output: Annotated[Path, typer.Option(help="CSV file to append to.", show_default="results/sandbox.csv")] = RESULTS,
) -> None:
    """Throughput of the sandbox. A wrong output ends the benchmark."""
    run_python("")  # the probe that the first call makes
    bubblewrap = subprocess.run(["bwrap", "--version"], capture_output=True, text=True).stdout.strip()
    versions = f"python {platform.python_version()} {bubblewrap}, {os.cpu_count()} cores"
    rows: list[dict[str, object]] = []
    for count in map(int, threads.split(",")):
        load, began = os.getloadavg()[0], time.perf_counter()
        with ThreadPoolExecutor(count) as pool:
            results = list(pool.map(lambda n: run_python(f"print({n})"), range(programs)))
        rate = programs / (time.perf_counter() - began)
        if wrong := [result for n, result in enumerate(results) if result.stdout != f"{n}\n"]:
            raise SystemExit(f"{len(wrong)} programs went wrong, the first: {wrong[0]}")
        case = {"threads": count, "programs": programs, "per_second": f"{rate:.1f}", "load_before": f"{load:.1f}"}
        rows.append(case | {"versions": versions, "date": date.today().isoformat()})
    append(rows, output)
    table = Table("threads", "programs", "per second", "load before")
    for row in rows:
        table.add_row(*map(str, list(row.values())[:4]))
    Console().print(table)
    print(f"{len(rows)} rows appended to {output}")


if __name__ == "__main__":
    typer.run(main)
