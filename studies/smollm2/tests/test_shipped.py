"""What ships in checkpoints/ is what the card and the page of results speak of."""

import json
import re
import shutil
import tarfile
from pathlib import Path

import pytest

from studies.smollm2.__main__ import main
from studies.smollm2.lora import ADAPTER
from studies.smollm2.settings import Base
from studies.smollm2.supervised import make_base
from studies.smollm2.tasks import DOMAINS
from studies.smollm2.weights import find_gguf, load_gguf
from trustmopd.evaluation.entries import weight_files
from trustmopd.evaluation.run_record import read_record
from trustmopd.recipe.teacher_source import TeacherSource
from trustmopd.util.files import file_sha256

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
    assert {name: file_sha256(path) for name, path in files.items()} == recorded()
    table = (SHIPPED / "README.md").read_text()
    assert all(f"| `{name}` |" in table and f"`{sha[:12]}…`" in table for name, sha in recorded().items())
    assert sum(path.stat().st_size for path in files.values()) < 20e6


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """Each archive of results in a folder of its own, with what one command makes of it."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("comparison", "longer")}
    for name, out in folders.items():
        with tarfile.open(SHIPPED / f"{name}.tar.xz") as archive:
            archive.extractall(out, filter="data")
        main(["results", "--out", str(out)])
    return folders


def tables(page):
    return re.findall(r"(?:^\|.*\|\n)+", page, re.MULTILINE)


def test_the_tables_of_the_page_are_those_that_the_shipped_results_make(unpacked):
    """Some of the page's leave rows out; tables under other headers are not made here."""
    made = {name: tables((out / "results.md").read_text()) for name, out in unpacked.items()}
    lines = {line for some in made.values() for table in some for line in table.splitlines()}
    shown = [table for table in tables(PAGE.read_text()) if table.partition("\n")[0] in lines]
    assert len(shown) == len(made["comparison"]) + 2  # and the two of the longer runs
    assert [line for table in shown for line in table.splitlines() if line not in lines] == []
    assert {made["comparison"][0], made["longer"][0]} <= set(shown)  # every row of scores


def test_every_shipped_run_is_in_the_tables(unpacked):
    for out in unpacked.values():
        rows = json.loads((out / "evaluation" / "scores.json").read_text())
        runs = [manifest.parent.relative_to(out / "runs").parts for manifest in out.glob("runs/*/*/*/manifest.json")]
        assert runs
        assert all(int(seed[-1]) in rows[f"{prompts}-{rule}"]["seeds"] for prompts, rule, seed in runs)
        assert (out / "report.html").is_file()


def test_the_shipped_teachers_are_the_ones_that_were_evaluated(unpacked):
    for domain in DOMAINS:
        record = read_record(unpacked["comparison"] / "evaluation" / f"teacher-{domain}")
        assert record["files"][-1:] == weight_files(TeacherSource(adapter=str(SHIPPED / "adapters" / domain)))


def test_the_base_merged_here_has_the_fingerprint_of_the_card(tmp_path):
    pytest.importorskip("gguf")
    try:
        gguf = find_gguf()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    out = shutil.copytree(SHIPPED, tmp_path / "study", ignore=shutil.ignore_patterns("*.tar.xz"))
    make_base(out, lambda: load_gguf(gguf), list, Base())  # refuses another fingerprint, of either model
    assert (out / "base" / "model.safetensors").stat().st_size > 250e6
