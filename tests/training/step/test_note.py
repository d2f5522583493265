"""What a step leaves behind: metrics over all its micro-batches, and records in which no two rollouts are one."""

from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch
from accelerate import Accelerator

from trustmopd.report.readers.token_records import read_records
from trustmopd.runs import RunDirectory
from trustmopd.training.step import StepLog, ask, candidates_of, objective_of
from trustmopd.training.step.batch import RolloutId
from trustmopd.training.step.note import StepTotals
from trustmopd.training.step.records import TokenRecorder

pytestmark = pytest.mark.unit

MU = torch.tensor([0.5, 1.0, 2.0])


@pytest.fixture
def log_of(family, tmp_path):
    def make(context, every=0):
        recorder = TokenRecorder(RunDirectory(tmp_path), family.tokenizer, every)
        return StepLog(context, Accelerator(cpu=True), [*family.specialists, "idle"], recorder, torch.float32)

    return make


@pytest.fixture
def note(family):
    """Note a batch in parts."""

    def run(log, context, batch, *parts, step=0):
        for rows in parts or [range(len(batch))]:
            part = batch.part(rows)
            scored = candidates_of(context, family.base, part, step=1)
            log.note(scored, objective_of(context, scored, part, MU), part, MU, step)

    return run


def test_the_metrics_of_micro_batches_are_those_of_the_batch(context_of, batch_of_lengths, log_of, note):
    context = context_of()
    batch, found = ask(context, batch_of_lengths()), []
    for parts in ([], [[0], [1, 2, 3, 4]], [[3, 1], [0, 2], [4]]):
        log = log_of(context)
        note(log, context, batch, *parts)
        found.append(log.finish(step=0))
    means = [{name: value for name, value in line.items() if "/" in name and "seconds" not in name} for line in found]
    for line in means:
        line.pop("memory/peak_gib")
        assert line == pytest.approx(means[0], rel=1e-5)
    assert sum(means[0][f"weight/{name}"] for name in ("math", "code", "if")) == pytest.approx(1.0)
    assert means[0]["weight/idle"] == 0 and "score/idle" not in means[0]


def test_what_nobody_was_asked_about_has_no_mean():
    totals = StepTotals()
    totals.add("overlap/idle", torch.zeros(0))
    totals.add("overlap/math", torch.tensor([1.0, 0.0]))
    totals.add("degenerate", torch.tensor(0.0), is_sum=True)
    assert totals.reduce(Accelerator(cpu=True)) == {"overlap/math": 0.5, "degenerate": 0.0}


def several_samples(batch):
    """Rows 0 and 4 answer one prompt, and are recorded with row 2."""
    ids = {0: RolloutId(3), 4: RolloutId(3, 1), 2: RolloutId(8)}
    rollouts = [replace(each, id=ids.get(row, each.id), recorded=row in ids) for row, each in enumerate(batch.rollouts)]
    return replace(batch, rollouts=tuple(rollouts))


def test_two_responses_to_one_prompt_are_two_rollouts_of_the_records_and_the_viewer(
    context_of, batch_of_lengths, log_of, note, tmp_path
):
    context = context_of()
    log = log_of(context, every=1)
    note(log, context, ask(context, several_samples(batch_of_lengths())), [4, 1], [0, 2, 3])
    log.finish(step=0)
    rollouts = read_records(tmp_path).rollouts
    assert [(each.name, len(each.texts)) for each in rollouts] == [("3", 5), ("3.1", 3), ("8", 7)]


def test_with_one_response_to_each_prompt_records_have_no_column_for_samples(
    context_of, batch_of_lengths, log_of, note, tmp_path
):
    context = context_of()
    log = log_of(context, every=2)
    batch = ask(context, batch_of_lengths())
    batch = replace(batch, rollouts=tuple(replace(each, recorded=True) for each in batch.rollouts))
    for step in range(2):
        note(log, context, batch, step=step)
        log.finish(step)
    assert [*RunDirectory(tmp_path).recorded()] == [1]
    table = pq.read_table(RunDirectory(tmp_path).records(1))
    assert "sample" not in table.column_names and len(table) == 16


def test_an_evaluation_leaves_means_and_no_records(context_of, batch_of_lengths, log_of, note, tmp_path):
    context = context_of()
    log = log_of(context, every=1)
    note(log, context, ask(context, several_samples(batch_of_lengths())), step=None)
    assert 0 < log.means()["agreement/max_weight"] <= 1
    assert log.means() == {}
    log.finish(step=0)
    assert not RunDirectory(tmp_path).recorded()
