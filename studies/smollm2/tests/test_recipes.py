"""The recipes of the study, and the benchmarks that they name by their file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from studies.smollm2.__main__ import SMALL
from studies.smollm2.mixed import KINDS
from studies.smollm2.stages import DIAGNOSED, REFERENCE, SWEPT, Study, recipe_names
from trustmopd.evaluation.benchmarks import get_benchmark
from trustmopd.training.prepare import config_of

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_trains_in_the_studys_folder_and_is_scored_on_its_held_out_prompts(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    recipe = Study(tmp_path, changes=SMALL).recipe(name)
    assert recipe.name == name
    assert config_of(recipe, recipe.seeds[0]).run_dir.startswith(str(tmp_path))
    assert "runs/smollm2" not in recipe.model_dump_json()
    benchmarks = [get_benchmark(place) for place in recipe.evaluation.benchmarks]
    assert [benchmark.domain for benchmark in benchmarks] == list(recipe.teachers)
    assert {benchmark.name for benchmark in benchmarks} == recipe.evaluation.data.keys()


def test_the_stages_name_recipes_that_there_are():
    assert {REFERENCE, SWEPT, *DIAGNOSED} <= set(recipe_names())
    assert recipe_names()[0] == REFERENCE


def test_the_benchmarks_are_found_from_the_root_without_it_on_the_path():
    """As the command `trustmopd` starts: only `python -m` puts the current directory on the path."""
    places = [f"studies/smollm2/benchmarks.py:smollm2_{kind.replace('+', '_')}" for kind in ("svamp", *KINDS)]
    load = f"from trustmopd.evaluation import get_benchmark; [get_benchmark(place) for place in {places}]"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    assert subprocess.run([sys.executable, "-P", "-c", load], cwd=ROOT, env=env).returncode == 0
