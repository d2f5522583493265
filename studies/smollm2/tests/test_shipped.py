"""The weights of the package and the adapters in checkpoints/ are those that the cards and tables speak of."""

import json
import shutil
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from studies.small_world.cells import finished_cells
from studies.smollm2.distillation import METHODS
from studies.smollm2.lora import ADAPTER
from studies.smollm2.stages import Study
from studies.smollm2.tasks import DOMAINS
from studies.smollm2.weights import INSTRUCT, find_gguf, load_gguf
from trustmopd.cli import app
from trustmopd.evaluation.checkpoint import weight_files
from trustmopd.evaluation.run_record import read_record
from trustmopd.policies.fingerprint import fingerprint
from trustmopd.quickstart.shipped import digest
from trustmopd.recipe.teacher_source import TeacherSource

ROOT = Path(__file__).parents[3]
SHIPPED, PAGE = ROOT / "checkpoints" / "smollm2-135m", ROOT / "docs" / "results" / "smollm2.md"


def recorded():
    """Adapter → SHA-256, by the card and the specialists' records."""
    hashes = {"base": json.loads((SHIPPED / "card.json").read_text())["stages"]["base"]["sha256"]}
    return hashes | {
        path.stem: json.loads(path.read_text())["sha256"] for path in (SHIPPED / "specialists").glob("*.json")
    }


def test_adapters_are_those_of_their_records_and_of_the_table():
    files = {path.parent.name: path for path in SHIPPED.glob(f"adapters/*/{ADAPTER}")}
    assert {name: digest(path) for name, path in files.items()} == recorded()
    table = (SHIPPED / "README.md").read_text()
    assert all(f"| `{name}` |" in table and f"`{sha[:12]}…`" in table for name, sha in recorded().items())
    assert sum(path.stat().st_size for path in files.values()) < 20e6


def unpacked(name, out):
    """The shipped files in a folder of their own, with an archive of results."""
    shutil.copytree(SHIPPED, out, copy_function=shutil.copyfile)
    with tarfile.open(SHIPPED / f"{name}.tar.xz") as archive:
        archive.extractall(out, filter="data")
    return out


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return unpacked("comparison", tmp_path_factory.mktemp("shipped") / "study")


def page_of(study):
    """What `--stage results` makes of it, as it would stand in docs/results."""
    result = CliRunner().invoke(app, ["reproduce", "smollm2", "--stage", "results", "--out", str(study)])
    assert result.exit_code == 0, result.output
    assert len(finished_cells(study, METHODS)) == len(list(study.glob("runs/*/*/seed-*")))
    return (study / "results.md").read_text().replace("](figures/", "](../images/smollm2-")


def test_the_page_is_what_the_shipped_results_make(study):
    _, _, made = page_of(study).partition("\n## ")
    assert made in PAGE.read_text()


def test_the_longer_runs_are_told_as_their_archive_makes_them(tmp_path):
    _, _, made = page_of(unpacked("longer", tmp_path / "study")).partition("## Held-out prompts of one domain\n\n")
    scores, picture, _ = made.partition("\n\n![")
    assert picture and scores in PAGE.read_text()


def test_the_shipped_teachers_are_the_ones_that_were_evaluated(study):
    for domain in DOMAINS:
        record = read_record(study / "evaluation" / f"teacher-{domain}")
        assert record["files"][-1:] == weight_files(TeacherSource(adapter=str(study / "adapters" / domain)))


@pytest.fixture(scope="module")
def gguf():
    pytest.importorskip("gguf")
    try:
        return find_gguf()
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_the_packages_weights_are_the_ones_that_were_measured(gguf):
    model, tokenizer = load_gguf(gguf)
    assert fingerprint(model) == INSTRUCT
    assert tokenizer.eos_token == "<|im_end|>" == tokenizer.pad_token
    assert getattr(model.config, "quantization_config", None) is None


@pytest.mark.slow
def test_the_base_merged_here_has_the_fingerprint_of_the_card(gguf, tmp_path):
    out = shutil.copytree(SHIPPED, tmp_path / "study")
    Study(out, [], {}, gguf).base()  # refuses another fingerprint
    assert (out / "base" / "model.safetensors").stat().st_size > 250e6
