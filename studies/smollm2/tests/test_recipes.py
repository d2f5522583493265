"""The recipes that are shipped are those that `reproduce smollm2` trains."""

from pathlib import Path

import pytest
import torch

from studies.smollm2.distillation import Comparison, all_cells
from studies.smollm2.settings import Settings
from trustmopd.recipe import load_recipe

FOLDER = Path(__file__).parents[3] / "recipes" / "smollm2-135m"


def test_every_row_has_a_recipe_and_every_recipe_is_a_row():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {cell.row for cell in all_cells(1)}


@pytest.mark.parametrize("row", sorted({cell.row for cell in all_cells(1)}))
def test_a_recipe_says_what_its_runs_are_trained_with(row, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # without what a study in the clone has found
    cells = [cell for cell in all_cells(Settings().distil.seeds) if cell.row == row]
    shipped = load_recipe(FOLDER / f"{row}.yaml").model_dump()
    assert shipped["seeds"] == [cell.seed for cell in cells]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # where the study samples and loads otherwise
    made = Comparison(Path("runs/smollm2"), Settings(), {}).recipe_of(cells[0]).model_dump()
    for recipe in (shipped, made):
        del recipe["seeds"], recipe["output"]
    assert shipped == made


def test_the_hubs_recipe_is_the_same_in_a_folder_of_its_own():
    """Every path in it: one that still named the other folder would mix two models' files."""
    hub = load_recipe(FOLDER / "hub" / "singlecap-trust.yaml").model_dump_json()
    ours = load_recipe(FOLDER / "singlecap-trust.yaml").model_dump_json()
    assert hub == ours.replace("runs/smollm2/", "runs/smollm2-hub/")
