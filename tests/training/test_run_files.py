"""What a run leaves behind, and that it loads and asks nobody it does not need."""

import json
import zlib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import recorded
import torch
import transformers

from trustmopd.method import displacement, trust_weights
from trustmopd.policies import fingerprint
from trustmopd.report.readers.run import open_run
from trustmopd.report.statistics.summary import summarise_run
from trustmopd.training.step.timing import PhaseClock

NAMES = ["math", "code", "if"]
MODEL_LOADER = transformers.AutoModelForCausalLM


@pytest.fixture(scope="module")
def trained(make, tmp_path_factory):
    """Two steps of twelve prompts, in threes: more prompts than are recorded, more candidates than are kept."""
    folder = tmp_path_factory.mktemp("trained")
    trainer = make(
        folder,
        global_batch_size=12,
        per_device_train_batch_size=3,
        num_candidates=20,
        calibration_batches=1,
        record_allocation_every=1,
        save_steps=2,
    )
    trainer.train()
    return folder, trainer


def records(folder, step=1):
    return pq.read_table(Path(folder) / "allocation" / f"step-{step:06d}.parquet")


# ---- manifest.json


def test_the_manifest_says_which_weights_prompts_versions_and_machine_made_the_run(trained, family):
    folder, _ = trained
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["schema_version"] == 2
    models = manifest["models"]
    assert models["student"]["fingerprint"] == models["reference"]["fingerprint"] == fingerprint(family.base)
    assert list(models["teachers"]) == NAMES
    for name, teacher in models["teachers"].items():
        assert teacher["fingerprint"] == fingerprint(family.specialists[name])
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["versions"]["transformers"] == transformers.__version__
    assert {"trustmopd", "python", "trl", "peft", "accelerate", "datasets"} <= manifest["versions"].keys()
    assert manifest["hardware"]["processes"] == 1
    assert {"machine", "gpus"} <= manifest["hardware"].keys()
    assert manifest["prompts"]["fingerprint"] and "24" in manifest["prompts"]["source"]
    assert manifest["config"]["gamma"] == 7.0 and manifest["config"]["global_batch_size"] == 12


def test_the_manifest_names_the_folders_that_models_came_from(build, checkpoints, tmp_path):
    teachers = {name: checkpoints[name] for name in NAMES}
    build(model=checkpoints["base"], teachers=teachers, max_steps=1, calibrated=False).train()
    models = json.loads((tmp_path / "run" / "manifest.json").read_text())["models"]
    assert models["student"]["source"] == checkpoints["base"]
    assert {name: teacher["source"] for name, teacher in models["teachers"].items()} == teachers


def test_a_checkpoint_is_complete_in_itself(trained, files_under):
    folder, trainer = trained
    checkpoint = folder / "checkpoint-2"
    assert {"manifest.json", "calibration.json", "model.safetensors", "trainer_state.json"} <= set(
        files_under(checkpoint)
    )
    calibration = json.loads((checkpoint / "calibration.json").read_text())
    assert calibration["schema_version"] == 1 and calibration["mu"] == trainer.calibration.mu
    ours, theirs = (json.loads((place / "manifest.json").read_text()) for place in (folder, checkpoint))
    assert ours["models"] == theirs["models"]


# ---- metrics.jsonl


def test_every_step_has_a_line_with_every_metric(trained, steps_of):
    folder, _ = trained
    lines = steps_of(folder)
    assert [line["step"] for line in lines] == [1, 2]
    expected = {
        "loss",
        *(f"weight/{name}" for name in NAMES),
        *(f"score/{name}" for name in NAMES),
        "agreement/max_weight",
        "agreement/effective_teachers",
        "candidates/student_mass",
        "candidates/degenerate_tokens",
        "completions/mean_length",
        "completions/min_length",
        "completions/max_length",
        "completions/clipped_ratio",
        *(f"seconds/{phase}" for phase in ("rollout", "student", "teachers", "reference", "backward")),
        "memory/peak_gib",
    }
    for line in lines:
        assert expected - line.keys() == set()
        assert sum(line[f"weight/{name}"] for name in NAMES) == pytest.approx(1.0, abs=1e-6)
        assert 1 / 3 <= line["agreement/max_weight"] <= 1
        assert 1 <= line["agreement/effective_teachers"] <= 3
        assert 0 < line["candidates/student_mass"] <= 1
        assert line["memory/peak_gib"] > 0
        assert all(
            line[f"seconds/{phase}"] > 0 for phase in ("rollout", "student", "teachers", "reference", "backward")
        )


def test_a_second_belongs_to_one_phase_only(monkeypatch):
    """The teachers' pass lies inside the step's call, the reference's inside the teachers': none is counted twice."""
    now = iter([0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 100.0, 101.0])
    monkeypatch.setattr("trustmopd.training.step.timing.time.perf_counter", lambda: next(now))
    clock = PhaseClock(torch.device("cpu"))
    with clock("backward"), clock("teachers"), clock("reference"):
        pass
    assert clock.take() == {"backward": 1 + 16, "teachers": 2 + 8, "reference": 4}
    with clock("rollout"):
        pass
    assert clock.take() == {"rollout": 1}


@pytest.mark.parametrize(
    ("allocation", "expected"),
    [("uniform", [1 / 3] * 3), ("random", None), ("routed", None), ({"rule": "single", "teacher": "code"}, [0, 1, 0])],
)
def test_a_rule_without_scores_logs_weights_of_every_teacher_and_no_scores(
    build, steps_of, tmp_path, allocation, expected
):
    build(allocation=allocation, max_steps=1).train()
    line = steps_of(tmp_path / "run")[0]
    weights = [line[f"weight/{name}"] for name in NAMES]
    assert sum(weights) == pytest.approx(1.0, abs=1e-6)
    assert expected is None or weights == pytest.approx(expected)
    assert not [name for name in line if name.startswith("score/")]
    assert "seconds/reference" not in line


# ---- allocation/step-*.parquet


def test_a_token_record_has_its_columns(trained):
    folder, _ = trained
    expected = [
        "step", "rollout", "prompt_id", "domain", "capabilities", "position", "token_id", "token_text",
        "student_entropy", "student_mass", "degenerate",
        *(f"{kind}_{name}" for name in NAMES for kind in ("score", "weight", "logp", "rest")),
        "top_ids", "student_logp", "student_rest", "reference_logp", "reference_rest",
    ]  # fmt: skip
    table = records(folder)
    assert set(table.column_names) == set(expected)
    for name in ("student_logp", "reference_logp", *(f"logp_{name}" for name in NAMES)):
        assert str(table.schema.field(name).type.value_type) == "halffloat"
        assert {len(row) for row in table[name].to_pylist()} == {16}


def test_a_token_record_is_one_row_a_response_token_of_eight_rollouts(trained):
    folder, trainer = trained
    for step in (1, 2):
        table = records(folder, step)
        assert set(table["step"].to_pylist()) == {step}
        by_rollout = {}
        for rollout, position in zip(table["rollout"].to_pylist(), table["position"].to_pylist(), strict=True):
            by_rollout.setdefault(rollout, []).append(position)
        assert len(by_rollout) == 8
        for positions in by_rollout.values():
            assert positions == list(range(len(positions)))
            assert len(positions) <= trainer.args.max_completion_length
    assert set(records(folder, 1)["rollout"].to_pylist()) != set(records(folder, 2)["rollout"].to_pylist())


def test_a_token_record_is_a_distribution_over_teachers_and_over_candidates(trained):
    table = records(trained[0])
    weights = np.array([table[f"weight_{name}"].to_pylist() for name in NAMES])
    student = np.array(table["student_logp"].to_pylist(), dtype=float)
    assert (np.diff(student, axis=1) <= 0).all(), "its likeliest candidates come first"
    assert all(len(set(row)) == 16 for row in table["top_ids"].to_pylist())
    np.testing.assert_allclose(weights.sum(axis=0), 1.0, atol=1e-6)
    policies = [("student_logp", "student_rest"), ("reference_logp", "reference_rest")]
    for logp, rest in [*policies, *((f"logp_{name}", f"rest_{name}") for name in NAMES)]:
        mass = np.exp(np.array(table[logp].to_pylist(), dtype=float)).sum(axis=1)
        # half precision: a log-probability near -4 is off by 0.002, so the sum by as much
        np.testing.assert_allclose(mass + np.array(table[rest].to_pylist(), dtype=float), 1.0, atol=4e-3)
        assert max(table[rest].to_pylist()) > 0, "20 candidates, 16 kept: something must remain"


def test_recorded_weights_follow_from_recorded_scores_and_mu(trained):
    folder, trainer = trained
    table = records(folder)
    scores = torch.tensor([table[f"score_{name}"].to_pylist() for name in NAMES])
    weights = torch.tensor([table[f"weight_{name}"].to_pylist() for name in NAMES])
    mu = torch.tensor([trainer.calibration.mu[name] for name in NAMES])
    torch.testing.assert_close(trust_weights(scores, mu, 7.0), weights, rtol=1e-4, atol=1e-5)


def test_a_recorded_response_is_the_one_its_prompt_was_given(build, family, tmp_path):
    """Against the rollouts as generated, before anything is shuffled."""
    trainer = build(record_allocation_every=1, max_steps=1, calibrated=False)
    generated = {}
    generate = trainer._generate_single_turn

    def remember(prompt_ids, *args, **kwargs):
        completions = generate(prompt_ids, *args, **kwargs)
        for prompt, completion in zip(prompt_ids, completions, strict=True):
            generated[family.tokenizer.decode(prompt)] = completion
        return completions

    trainer._generate_single_turn = remember
    trainer.train()
    rendered = {
        row["id"]: family.tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
        for row in family.prompts
    }
    found = {}
    table = records(tmp_path / "run")
    for name, token in zip(table["prompt_id"].to_pylist(), table["token_id"].to_pylist(), strict=True):
        found.setdefault(name, []).append(token)
    assert len(found) == 4
    assert {rendered[name]: tokens for name, tokens in found.items()} == generated


def test_the_recorded_sample_does_not_depend_on_the_split_into_micro_batches(trained, make, tmp_path):
    folder, _ = trained
    make(
        tmp_path,
        global_batch_size=12,
        per_device_train_batch_size=12,
        num_candidates=20,
        calibration_batches=1,
        record_allocation_every=1,
        max_steps=1,
    ).train()
    table, other = records(folder), records(tmp_path)
    for column in ("rollout", "prompt_id", "domain", "position", "token_id", "top_ids"):
        assert table[column].to_pylist() == other[column].to_pylist(), column
    for name in NAMES:
        np.testing.assert_allclose(table[f"score_{name}"].to_pylist(), other[f"score_{name}"].to_pylist(), rtol=1e-3)


def test_records_are_kept_every_so_many_steps_and_never_at_zero(make, tmp_path, files_under):
    make(tmp_path / "some", max_steps=5, record_allocation_every=2, allocation="uniform").train()
    make(tmp_path / "never", max_steps=2, record_allocation_every=0, allocation="uniform").train()
    assert files_under(tmp_path / "some" / "allocation") == [f"step-00000{step}.parquet" for step in (1, 3, 5)]
    assert not (tmp_path / "never" / "allocation").exists()


def test_a_run_directory_of_its_own_takes_everything_but_the_checkpoints(build, tmp_path, files_under):
    build(run_dir=str(tmp_path / "files"), record_allocation_every=1, max_steps=1, save_steps=1).train()
    expected = {"allocation/step-000001.parquet", "calibration.json", "cost.json", "manifest.json", "metrics.jsonl"}
    assert set(files_under(tmp_path / "files")) == expected | {".lock"}
    assert (tmp_path / "run" / "checkpoint-1" / "manifest.json").is_file()
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_prompts_without_ids_and_labels_are_recorded_by_their_row(build, family, tmp_path):
    bare = family.prompts.select_columns("prompt")
    build(prompts=bare, record_allocation_every=1, max_steps=1, calibrated=False).train()
    table = records(tmp_path / "run")
    assert table["prompt_id"].to_pylist() == [str(row) for row in table["rollout"].to_pylist()]
    assert set(table["domain"].to_pylist()) == {None}


# ---- Rules given as functions


def trust_the_second(at, scores):
    weights = torch.zeros_like(scores)
    weights[1] = 1.0
    return weights


def squared_displacement(at):
    return displacement(at.teacher_logp, at.reference_logp).square()


def test_a_rule_and_a_score_of_ones_own_are_used_and_kept_by_name(build, steps_of, tmp_path):
    trainer = build(
        allocation=trust_the_second, score=squared_displacement, max_steps=1, save_steps=1, record_allocation_every=1
    )
    trainer.train()
    line = steps_of(tmp_path / "run")[0]
    assert [line[f"weight/{name}"] for name in NAMES] == [0.0, 1.0, 0.0]
    stored = torch.load(tmp_path / "run" / "checkpoint-1" / "training_args.bin", weights_only=False)
    config = json.loads((tmp_path / "run" / "manifest.json").read_text())["config"]
    for kept in (stored.allocation, config["allocation"]["rule"]):
        assert kept.endswith("trust_the_second")
    for kept in (stored.score, config["score"], trainer.calibration.depends_on["score"]):
        assert kept.endswith("squared_displacement")
    build(
        allocation=trust_the_second, score=squared_displacement, max_steps=2, save_steps=1, record_allocation_every=1
    ).train(resume_from_checkpoint=True)
    assert [line["step"] for line in steps_of(tmp_path / "run")] == [1, 2]


def test_a_score_of_ones_own_has_a_mu_of_its_own(build, make, tmp_path):
    squared = make(tmp_path / "squared", score=squared_displacement).calibrate()
    plain = make(tmp_path / "plain").calibrate()
    for name in NAMES:
        second_moment = plain.spread[name] ** 2 + plain.mu[name] ** 2
        assert squared.mu[name] == pytest.approx(second_moment, rel=1e-5)


# ---- What is not used is not loaded


@pytest.fixture
def loaded(monkeypatch):
    """Folders whose weights were read."""
    folders = []
    read = MODEL_LOADER.from_pretrained

    def remember(source, *args, **kwargs):
        if kwargs.get("device_map") != "meta":  # where it is seen whether all weights are there, and none are read
            folders.append(str(source))
        return read(source, *args, **kwargs)

    monkeypatch.setattr(MODEL_LOADER, "from_pretrained", remember)
    return folders


@pytest.mark.parametrize(
    ("settings", "members"),
    [
        ({"allocation": "single", "single_teacher": "code"}, ["code"]),
        ({"allocation": "uniform"}, NAMES),
        ({"allocation": "random"}, NAMES),
        ({"allocation": "routed"}, NAMES),
        ({"score": "likelihood"}, NAMES),
        ({"score": "negative_entropy"}, NAMES),
        ({"score": "teacher_student_kl"}, NAMES),
        ({}, [*NAMES, "reference"]),
        ({"calibrated": False}, [*NAMES, "reference"]),
    ],
    ids=str,
)
def test_only_the_policies_that_a_rule_asks_are_loaded(build, checkpoints, loaded, settings, members):
    teachers = {name: checkpoints[name] for name in NAMES}
    trainer = build(teachers=teachers, reference=checkpoints["base"], **settings)
    assert list(trainer.pool.members) == members
    folders = {"reference": checkpoints["base"], **teachers}
    assert sorted(loaded) == sorted(folders[name] for name in members)


def test_a_single_teacher_run_still_names_the_others_in_its_manifest(build, tmp_path):
    build(allocation="single", single_teacher="code", max_steps=1).train()
    models = json.loads((tmp_path / "run" / "manifest.json").read_text())["models"]
    assert models["reference"] is None
    assert [teacher["fingerprint"] is None for teacher in models["teachers"].values()] == [True, False, True]


# ---- cost.json


def test_cost_counts_scored_models_device_time_and_calibration(trained, steps_of):
    folder, _ = trained
    cost = json.loads((folder / "cost.json").read_text())
    assert cost["schema_version"] == 1 and cost["devices"] == 1
    assert (cost["scored"]["teachers"], cost["scored"]["reference"]) == (3, 1)
    each = json.loads((folder / "manifest.json").read_text())["models"]["teachers"]["math"]["parameters"]
    assert cost["scored"]["parameters"] == 4 * each > 0
    lines = steps_of(folder)
    seconds = sum(value for line in lines for name, value in line.items() if name.startswith("seconds/"))
    assert cost["training"]["steps"] == 2 and cost["training"]["seconds"] == pytest.approx(seconds)
    assert cost["training"]["device_hours"] == pytest.approx(seconds / 3600)
    peak = max(line["memory/peak_gib"] for line in lines)
    assert peak <= cost["training"]["peak_memory_gib"] < 1.5 * peak
    assert cost["calibration"]["seconds"] > 0


@pytest.fixture
def spent(monkeypatch):
    """Seconds of each step, as the clock gave them out."""
    seconds, take = [], PhaseClock.take

    def noted(clock):
        taken = take(clock)
        seconds.append(sum(taken.values()))
        return taken

    monkeypatch.setattr(PhaseClock, "take", noted)
    return seconds


@pytest.mark.parametrize("evaluated", [False, True])  # at the end: then the summary has nothing of training
def test_steps_after_the_last_logged_one_are_counted_and_the_run_is_finished(
    build, family, tmp_path, steps_of, spent, evaluated
):
    last = {"eval_strategy": "steps", "eval_steps": 3, "eval_prompts": family.prompts.select(range(4))}
    settings = {"logging_steps": 2, "allocation": "single", "single_teacher": "code", **(last if evaluated else {})}
    build(max_steps=3, **settings).train()
    cost = json.loads((tmp_path / "run" / "cost.json").read_text())
    assert (cost["scored"]["teachers"], cost["scored"]["reference"]) == (1, 0) and cost["calibration"] is None
    assert [line["step"] for line in steps_of(tmp_path / "run")] == [2]
    assert cost["training"]["steps"] == 3
    assert cost["training"]["seconds"] == pytest.approx(sum(spent[:3]))  # evaluating is not training
    found = summarise_run(open_run(tmp_path / "run"))
    assert found.finished and found.steps == 3 and found.stopped == ""
    assert not any("--resume" in str(each) for each in found.missing)


def test_a_resumed_run_counts_the_steps_of_a_summary_once(build, tmp_path, spent):
    settings = {"logging_steps": 2, "save_steps": 3, "allocation": "uniform"}
    build(max_steps=3, **settings).train()
    build(max_steps=5, **settings).train(resume_from_checkpoint=True)
    cost = json.loads((tmp_path / "run" / "cost.json").read_text())
    assert cost["training"]["steps"] == 5 and cost["training"]["seconds"] == pytest.approx(sum(spent))


def test_a_run_killed_between_logged_steps_is_not_finished(build, tmp_path):
    class Killed(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(max_steps=4, logging_steps=2, allocation="uniform", callbacks=[Killed()]).train()
    assert summarise_run(open_run(tmp_path / "run")).stopped == "step 2 of 4"


def test_a_resumed_run_still_knows_what_calibrating_cost_and_counts_each_step_once(build, tmp_path, steps_of):
    build(max_steps=2, save_steps=2).train()
    first = json.loads((tmp_path / "run" / "cost.json").read_text())
    build(max_steps=4, save_steps=2).train(resume_from_checkpoint=True)
    second = json.loads((tmp_path / "run" / "cost.json").read_text())
    assert second["calibration"] == first["calibration"] and second["training"]["steps"] == 4
    seconds = sum(v for line in steps_of(tmp_path / "run") for name, v in line.items() if name.startswith("seconds/"))
    assert second["training"]["seconds"] == pytest.approx(seconds)


def test_the_peak_of_memory_is_that_of_one_step_however_often_steps_are_logged(build, tmp_path, monkeypatch):
    held = iter([10.0, 10.0, 10.0, 50.0])
    last = [0.0]

    def peak(device):
        last[0] = next(held, last[0])
        return last[0]

    monkeypatch.setattr("trustmopd.training.step.note.peak_memory_gib", peak)
    build(max_steps=4, logging_steps=4).train()
    assert json.loads((tmp_path / "run" / "cost.json").read_text())["training"]["peak_memory_gib"] == 50.0


def test_the_manifest_says_how_many_steps_epochs_come_to(build, tmp_path):
    build(max_steps=-1, num_train_epochs=0.5, allocation="uniform").train()
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["planned_steps"] == 3 and manifest["config"]["max_steps"] == -1  # half of 24 prompts, by fours


# ---- What records say and weigh


def test_records_hold_the_texts_of_their_candidates_and_prompts(trained, family):
    table = records(trained[0])
    spoken = json.loads(zlib.decompress(table.schema.metadata[b"trustmopd"]))
    ids = {token for row in table["top_ids"].to_pylist() for token in row}
    assert spoken["texts"] == {str(token): family.tokenizer.decode([token]) for token in ids}
    tokens = zip(table["token_id"].to_pylist(), table["token_text"].to_pylist(), strict=True)
    assert all(text == family.tokenizer.decode([token]) for token, text in tokens)
    rows = {row["id"]: (number, row["prompt"]) for number, row in enumerate(family.prompts)}
    recorded = [rows[name] for name in set(table["prompt_id"].to_pylist())]
    assert spoken["prompts_by_row"] == {str(number): prompt for number, prompt in recorded}


def test_recording_is_a_phase_of_its_own(trained, steps_of, build, tmp_path):
    assert all(line["seconds/records"] > 0 for line in steps_of(trained[0]))
    build(max_steps=2, record_allocation_every=2).train()
    first, second = steps_of(tmp_path / "run")
    assert first["seconds/records"] > 0 and second["seconds/records"] == 0


def test_a_record_file_weighs_under_100_bytes_a_token_and_teacher(tmp_path):
    run = recorded.make_run(tmp_path, steps=1, tokens=1000, candidates=128, vocabulary_size=50_000)
    (file,) = (run / "allocation").iterdir()
    assert file.stat().st_size / pq.read_table(file).num_rows / 3 < 100


def test_an_evaluation_set_logs_weights_and_scores_of_its_own_tokens(build, family, tmp_path):
    held_out = family.prompts.select(range(20, 24))
    settings = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 2}
    trainer = build(max_steps=1, prompts=family.prompts.select(range(20)), eval_prompts=held_out, **settings)
    trainer.train()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained, evaluated = (next(line for line in lines if name in line) for name in ("loss", "eval_loss"))
    weights = [evaluated[f"eval_weight/{name}"] for name in family.specialists]
    assert sum(weights) == pytest.approx(1) and min(weights) > 0
    assert all(evaluated[f"eval_score/{name}"] > 0 for name in family.specialists)
    assert evaluated["eval_weight/math"] != trained["weight/math"]
    assert trained.keys() & {"weight/math", "score/math"} and "eval_weight/math" not in trained
