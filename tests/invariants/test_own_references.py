"""Teachers that were not grown from one model: each is measured from where it started."""

import copy
import json

import pyarrow.parquet as pq
import pytest
import replay
import tiny
import torch
from peft import PeftModel

from trustmopd import Teacher
from trustmopd.policies.graph import is_reference


@pytest.fixture(scope="module")
def other():
    """A second base, of another size."""
    return tiny.model(5, hidden=48, layers=3)


@pytest.fixture(scope="module")
def pool(other):
    """`math` grew from the student, the others from the second base."""
    return {
        "math": tiny.specialist(tiny.model(), 1),
        "code": tiny.specialist(other, 2),
        "if": tiny.specialist(other, 3),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("own-references")


def measured_from(teachers, other):
    return {
        name: Teacher(model=copy.deepcopy(model), reference=None if name == "math" else other)
        for name, model in teachers.items()
    }


def references_of(trainer):
    return [name for name in trainer.pool.members if is_reference(name)]


@pytest.mark.parametrize("placement", ["resident", "offload"])
def test_a_steps_loss_and_gradient_are_the_papers_with_each_teachers_own_reference(pool, other, folder, placement):
    step = replay.run(folder / placement, teachers=measured_from(pool, other), teacher_placement=placement)
    assert references_of(step.trainer) == ["reference", "reference:code"]  # the second base is read once
    assert step.trainer.pool.references == {"math": "reference", "code": "reference:code", "if": "reference:code"}
    student = tiny.model()
    expected = replay.plain_objective(
        student, list(pool.values()), replay.plain_trust(), references=[student, other, other]
    )
    assert step.loss == pytest.approx(expected.loss, rel=1e-5)
    assert replay.difference(expected.gradient, step.gradient) < 1e-5


def test_the_student_in_place_of_a_lost_reference_gives_another_loss(pool, other, folder):
    teachers = {name: Teacher(model=copy.deepcopy(model), reference="student") for name, model in pool.items()}
    options = {"save_strategy": "steps", "save_steps": 1}
    step = replay.run(folder / "student", teachers=teachers, reference=tiny.model(9), **options)
    card = next((folder / "student").rglob("README.md")).read_text()
    rows = [line for line in card.splitlines() if line.startswith("| reference of")]
    assert len(rows) == 3 and all("fall-back" in row for row in rows)
    assert references_of(step.trainer) == ["reference:math"]  # the common one measures nobody, and is not loaded
    expected = replay.plain_objective(tiny.model(), list(pool.values()), replay.plain_trust())
    assert step.loss == pytest.approx(expected.loss, rel=1e-5)
    own = replay.run(folder / "student-own", teachers=measured_from(pool, other))
    assert abs(own.loss - step.loss) > 1e-3


@pytest.mark.parametrize("reference", ["path", "copy", "student"])
def test_own_references_that_are_all_the_common_one_change_no_bit(folder, reference):
    base = tiny.save(tiny.model(), folder / "base")
    given = {"path": base, "copy": tiny.save(tiny.model(), folder / "base-copy"), "student": "student"}[reference]
    teachers = {n: Teacher(model=model, reference=given) for n, model in replay.specialists().items()}
    common = replay.run(folder / f"common-{reference}", student=base, reference=given if reference == "copy" else None)
    own = replay.run(folder / reference, student=base, teachers=teachers)
    assert len(references_of(own.trainer)) == 1
    assert own.loss == common.loss
    assert all(torch.equal(own.gradient[name], common.gradient[name]) for name in common.gradient)
    assert own.token_metrics() == common.token_metrics()


def test_a_copy_of_the_common_reference_is_read_once(folder):
    copied = tiny.save(tiny.model(), folder / "another-copy")
    teachers = {n: Teacher(model=m, reference=copied if n == "code" else None) for n, m in replay.specialists().items()}
    trainer = replay.trainer_of(folder / "copied", teachers=teachers)
    assert references_of(trainer) == ["reference"]
    assert set(trainer.pool.references.values()) == {"reference"}


def test_the_order_of_the_teachers_changes_nothing(pool, other, folder):
    first = replay.run(folder / "first", teachers=measured_from(pool, other))
    second = replay.run(folder / "second", teachers=measured_from(dict(reversed(pool.items())), other))
    assert second.loss == pytest.approx(first.loss, rel=1e-6)
    assert second.token_metrics() == pytest.approx(first.token_metrics(), rel=1e-5)


def test_adapters_on_their_own_reference_share_its_weights(other, folder):
    base = tiny.save(other, folder / "second")
    adapters = {name: tiny.adapter(other, folder / f"adapter-{name}", seed) for seed, name in enumerate(("code", "if"))}
    teachers = {name: Teacher(model=base, adapter=path, reference=base) for name, path in adapters.items()}
    step = replay.run(folder / "adapters", teachers={"math": tiny.specialist(tiny.model(), 1), **teachers})
    members = step.trainer.pool.members
    assert members["code"].host is members["if"].host is members["reference:code"].host
    merged = [PeftModel.from_pretrained(copy.deepcopy(other), path).merge_and_unload() for path in adapters.values()]
    student = tiny.model()
    expected = replay.plain_objective(
        student, [tiny.specialist(student, 1), *merged], replay.plain_trust(), references=[student, other, other]
    )
    assert step.loss == pytest.approx(expected.loss, rel=1e-5)


def test_every_reference_is_named_by_calibration_manifest_card_and_records(pool, other, folder):
    options = {"save_strategy": "steps", "save_steps": 1, "record_allocation_every": 1}
    trained = replay.run(folder / "named", teachers=measured_from(pool, other), **options).trainer
    run = trained.files.run
    manifest = json.loads(run.manifest.read_text())
    own = manifest["models"]["own_references"]
    assert own.keys() == {"code", "if"} and own["code"] == own["if"]
    depends_on = json.loads(run.calibration.read_text())["depends_on"]
    assert depends_on["own_references"] == {name: each["fingerprint"] for name, each in own.items()}
    assert depends_on["reference"] == manifest["models"]["reference"]["fingerprint"] != own["code"]["fingerprint"]
    card = next(run.path.rglob("README.md")).read_text()
    assert "| reference of `code` |" in card and "| reference of `math` |" not in card
    (records,) = run.path.rglob("*.parquet")
    columns = set(pq.read_schema(records).names)
    assert {f"reference_logp_{name}" for name in pool} <= columns and "reference_logp" not in columns
    small, large = (sum(p.numel() for p in model.parameters()) for model in (tiny.model(), other))
    counted = {"teachers": 3, "reference": 2, "parameters": 2 * small + 3 * large}
    assert json.loads(run.cost.read_text())["scored"] == counted


def test_a_resume_with_another_own_reference_is_refused(pool, other, folder):
    options = {"save_strategy": "steps", "save_steps": 1}
    replay.run(folder / "resumed", teachers=measured_from(pool, other), **options)
    moved = replay.trainer_of(folder / "resumed", teachers=measured_from(pool, tiny.specialist(other, 9)), max_steps=2)
    with pytest.raises(ValueError, match="the reference of teacher 'code'"):
        moved.train(resume_from_checkpoint=True)
