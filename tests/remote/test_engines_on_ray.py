"""Several training processes ask one pool on Ray, whichever engine shares the student between them."""

import json
from importlib.util import find_spec
from pathlib import Path

import beside
import engines
import pytest
import replay
from processes import launch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipes")
    engines.write_recipes(folder)
    return folder


@pytest.mark.parametrize("engine", ["fsdp2", "zero3"])
def test_the_losses_are_those_of_resident_policies(engine: str, recipes: Path, tmp_path: Path) -> None:
    if engine.startswith("zero") and find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed: make test-ray installs it")
    chosen = engines.ENGINES[engine]
    arguments = [beside.__file__, str(recipes / f"{chosen.recipe}.yaml"), str(tmp_path)]
    launch(arguments, processes=2, logs=tmp_path, settings=chosen.settings)
    expected, found = (engines.metrics(tmp_path / name) for name in ("resident", "ray"))
    assert len(expected) == len(found) == 2
    for name in ("loss", *(f"weight/{teacher}" for teacher in replay.TEACHERS)):
        assert [line[name] for line in found] == pytest.approx([line[name] for line in expected], rel=0, abs=1e-6), name
    manifest = json.loads((tmp_path / "ray" / "manifest.json").read_text())
    assert (manifest["engine"]["name"], manifest["engine"]["processes"]) == (chosen.name, 2)
    assert all(line[f"ray/bytes/{replay.TEACHERS[0]}"] > 0 for line in found)
