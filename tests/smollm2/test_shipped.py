"""The weights of the package and the adapters in checkpoints/ are those that the cards and tables speak of."""

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from trustmopd.evaluation.aggregation import score_rows, score_table
from trustmopd.evaluation.graded import collect
from trustmopd.smollm2.lora import ADAPTER
from trustmopd.smollm2.stages import Study
from trustmopd.smollm2.weights import INSTRUCT, find_gguf, load_gguf
from trustmopd.teachers.fingerprint import fingerprint
from trustmopd.testbed.shipped import digest

SHIPPED = Path(__file__).parents[2] / "checkpoints" / "smollm2-135m"


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


def test_the_scores_on_the_page_are_those_of_the_shipped_responses(tmp_path):
    with tarfile.open(SHIPPED / "comparison.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    rows = score_rows(collect([tmp_path / "evaluation"])[0])
    page = (SHIPPED.parents[1] / "docs" / "results" / "smollm2.md").read_text()
    assert score_table(rows).to_markdown().strip() in page
    assert {row for row in rows if row.startswith("singlecap-")} == {
        f"singlecap-{rule}" for rule in ("trust", "uniform", "routed", "response-level")
    }


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
