"""A run that is killed goes on as if it had not been, or says why it cannot."""

import copy
import json
import logging
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import tiny
import torch
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import Trainer

import trustmopd
import trustmopd.training.calibrate as calibrating
from trustmopd.training.run.run_files import RunFiles, set_aside

SCRIPT = '''
"""Six steps from checkpoints on disk. With `wait_after`, that step is made and the next one never begins."""
import json
import sys
import time

import tiny
import torch
from transformers import TrainerCallback

import trustmopd.training.calibrate as calibrating
from trustmopd import TrustMOPDConfig, TrustMOPDTrainer


class Wait(TrainerCallback):
    def __init__(self, after):
        self.after = after

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.after:
            time.sleep(600)


def no_calibrating(*args, **kwargs):
    raise AssertionError("a resumed run must not calibrate again")


def run(output_dir, checkpoints, allocation, wait_after=None, resume=False):
    torch.set_num_threads(1)
    if resume:
        calibrating.Calibrator.measure = no_calibrating
    trainer = TrustMOPDTrainer(
        model=checkpoints["base"],
        teachers={name: checkpoints[name] for name in ("math", "code", "if")},
        args=TrustMOPDConfig(
            output_dir=output_dir,
            allocation=allocation,
            num_candidates=16,
            max_completion_length=6,
            global_batch_size=4,
            per_device_train_batch_size=2,
            calibration_batches=1,
            max_steps=6,
            save_steps=2,
            learning_rate=1e-3,
            record_allocation_every=1,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        ),
        # 20 prompts, 5 batches: the sixth step lies in the second epoch
        train_dataset=tiny.prompts(20),
        callbacks=[Wait(wait_after)],
    )
    trainer.train(resume_from_checkpoint=resume)


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
'''


def start(script, **arguments):
    sources = [str(Path(tiny.__file__).parent), str(Path(trustmopd.__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sources), "OMP_NUM_THREADS": "1"}
    environment.pop("WORLD_SIZE", None)
    return subprocess.Popen(
        [sys.executable, str(script), json.dumps(arguments)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_after(process, metrics, step):
    """SIGKILL once the line of this step has been written."""
    until = time.monotonic() + 150
    while not metrics.is_file() or f'"step": {step},' not in metrics.read_text():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < until, f"step {step} was not reached"
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("allocation", "killed_after"), [("trust", 5), ("random", 3)])
def test_killed_run_resumes_on_the_same_trajectory(checkpoints, tmp_path, steps_of, allocation, killed_after):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = start(
        script, output_dir=str(killed), checkpoints=checkpoints, allocation=allocation, wait_after=killed_after
    )
    kill_after(process, killed / "metrics.jsonl", killed_after)
    assert sorted(path.name for path in killed.glob("checkpoint-*"))[-1] == f"checkpoint-{killed_after - 1}"
    calibration = (killed / "calibration.json").read_bytes() if allocation == "trust" else None

    # As a kill in the middle of writing would leave them.
    with (killed / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 6, "lo')
    (killed / "allocation" / f"step-{killed_after:06d}.parquet").write_bytes(b"PAR1 half a table")
    (killed / "allocation" / "step-000009.parquet").write_bytes(b"a longer run was here")

    resumed = start(script, output_dir=str(killed), checkpoints=checkpoints, allocation=allocation, resume=True)
    _, errors = resumed.communicate(timeout=150)
    assert resumed.returncode == 0, errors
    runpy.run_path(str(script))["run"](str(whole), checkpoints, allocation)

    expected, found = steps_of(whole), steps_of(killed)
    assert [line["step"] for line in found] == [line["step"] for line in expected] == [1, 2, 3, 4, 5, 6]
    for name in (
        "loss",
        "grad_norm",
        "learning_rate",
        "weight/math",
        "weight/code",
        "candidates/student_mass",
        "epoch",
    ):
        assert [line[name] for line in found] == pytest.approx([line[name] for line in expected], abs=1e-6), name
    assert len({line["loss"] for line in found}) == 6
    weights, resumed_weights = (load_file(run / "checkpoint-6" / "model.safetensors") for run in (whole, killed))
    for name, weight in weights.items():
        torch.testing.assert_close(resumed_weights[name], weight, rtol=0, atol=1e-6)
    assert any(not torch.equal(weight, tiny_weight) for weight, tiny_weight in zip(
        weights.values(), load_file(Path(checkpoints["base"]) / "model.safetensors").values(), strict=True
    ))  # fmt: skip

    records = sorted(path.name for path in (killed / "allocation").iterdir())
    assert records == [f"step-{step:06d}.parquet" for step in range(1, 7)]
    for name in records:
        table, other = (pq.read_table(run / "allocation" / name) for run in (killed, whole))
        for column in ("step", "prompt_id", "position", "token_id"):
            assert table[column].to_pylist() == other[column].to_pylist(), (name, column)
        assert table["weight_if"].to_pylist() == pytest.approx(other["weight_if"].to_pylist(), abs=1e-5)
    if calibration is not None:
        assert (killed / "calibration.json").read_bytes() == calibration
        assert (killed / "checkpoint-6" / "calibration.json").read_bytes() == calibration


def test_a_student_that_trains_an_adapter_resumes_on_the_same_trajectory(make, tmp_path, steps_of):
    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    settings = {"max_steps": 4, "save_steps": 2, "calibration_batches": 1, "learning_rate": 1e-2}
    make(tmp_path / "whole", peft_config=adapter, **settings).train()
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "resumed" / "checkpoint-2")
    make(tmp_path / "resumed", peft_config=adapter, **settings).train(resume_from_checkpoint=True)
    expected = [line["loss"] for line in steps_of(tmp_path / "whole")][2:]
    assert [line["loss"] for line in steps_of(tmp_path / "resumed")] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_output_layer_is_not_said_to_be_missing(make, tmp_path, caplog, tied):
    student = tiny.model(0, tied=tied)
    settings = {"teachers": {"math": tiny.specialist(student, 1)}, "calibration_batches": 1, "save_steps": 1}
    make(tmp_path / "run", model=copy.deepcopy(student), max_steps=1, **settings).train()
    resumed = make(tmp_path / "run", model=copy.deepcopy(student), max_steps=2, **settings)
    with caplog.at_level(logging.WARNING, logger="transformers"):
        logging.getLogger("transformers").addHandler(caplog.handler)
        try:
            resumed.train(resume_from_checkpoint=True)
        finally:
            logging.getLogger("transformers").removeHandler(caplog.handler)
    assert "missing keys" not in caplog.text


# ---- Which checkpoint, and whether it belongs to this run


@pytest.fixture(scope="module")
def two_steps(make, tmp_path_factory):
    """A finished run with checkpoints after both of its steps."""
    folder = tmp_path_factory.mktemp("two") / "run"
    make(folder, save_steps=1, calibration_batches=1, warmup_steps=0).train()
    return folder


@pytest.fixture
def run(two_steps, tmp_path):
    return Path(shutil.copytree(two_steps, tmp_path / "run"))


@pytest.fixture
def go_on(build):
    """The trainer that made `run`, but for what is named, with one more step to make."""

    def trainer(**parts):
        return build(**{"save_steps": 1, "calibration_batches": 1, "warmup_steps": 0, "max_steps": 3, **parts})

    return trainer


def test_a_checkpoint_that_was_never_finished_is_passed_over(run, go_on, steps_of):
    (run / "checkpoint-2" / "manifest.json").unlink()
    expected = steps_of(run)
    go_on(max_steps=2).train(resume_from_checkpoint=True)
    found = steps_of(run)
    assert [line["step"] for line in found] == [1, 2]
    assert found[0] == expected[0]
    assert found[1]["loss"] == pytest.approx(expected[1]["loss"], abs=1e-6)
    assert found[1]["seconds/rollout"] != expected[1]["seconds/rollout"]


def test_a_checkpoint_that_was_never_finished_is_refused_by_name(run, go_on):
    (run / "checkpoint-2" / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"checkpoint-2 .*resume_from_checkpoint=True"):
        go_on().train(resume_from_checkpoint=str(run / "checkpoint-2"))


def test_without_a_whole_checkpoint_there_is_nothing_to_resume(run, go_on):
    for manifest in run.glob("checkpoint-*/manifest.json"):
        manifest.unlink()
    with pytest.raises(ValueError, match=str(run)):
        go_on().train(resume_from_checkpoint=True)


def test_a_checkpoint_that_does_not_exist_is_named(run, go_on):
    with pytest.raises(ValueError, match="checkpoint-7"):
        go_on().train(resume_from_checkpoint=str(run / "checkpoint-7"))


def test_a_checkpoint_killed_while_it_was_written_anew_is_not_taken_for_whole(run, go_on, monkeypatch):
    """Going back to checkpoint-1 writes over checkpoint-2, whose old manifest must not vouch for the new half."""

    def killed(self, output_dir):
        raise KeyboardInterrupt

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(Trainer, "_save_optimizer_and_scheduler", killed)
        go_on(learning_rate=1e-2).train(resume_from_checkpoint=str(run / "checkpoint-1"))
    assert not (run / "checkpoint-2" / "manifest.json").exists()


def test_the_old_checkpoint_is_kept_until_the_new_one_is_whole(run, go_on, monkeypatch):
    """With one checkpoint to keep, a kill just before the new one's last file must leave the old one."""
    shutil.rmtree(run / "checkpoint-1")

    save_beside = RunFiles.save_beside

    def killed(files, folder):
        if folder.path.name.startswith("checkpoint-"):
            raise KeyboardInterrupt
        save_beside(files, folder)

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(RunFiles, "save_beside", killed)
        go_on(save_total_limit=1).train(resume_from_checkpoint=True)
    assert [path.parent.name for path in run.glob("checkpoint-*/manifest.json")] == ["checkpoint-2"]


def test_only_as_many_checkpoints_are_kept_as_asked_for(run, go_on):
    go_on(save_total_limit=1).train(resume_from_checkpoint=True)
    assert [path.name for path in run.glob("checkpoint-*")] == ["checkpoint-3"]


@pytest.mark.parametrize(
    "who", ["teacher 'math'", "teacher 'if'", "teacher 'law'", "the student", "the reference", "the prompt set"]
)
def test_other_weights_or_prompts_are_refused(run, go_on, family, who):
    before = (run / "metrics.jsonl").read_bytes()
    pool, other = family.specialists, tiny.specialist(family.base, 99)
    changed = {
        "teacher 'math'": {"teachers": {**pool, "math": other}},
        "teacher 'if'": {"teachers": {name: pool[name] for name in ("math", "code")}},
        "teacher 'law'": {"teachers": {**pool, "law": other}},
        "the student": {"model": other, "reference": copy.deepcopy(family.base)},
        "the reference": {"reference": other},
        "the prompt set": {"prompts": family.prompts.select(range(23, -1, -1))},
    }
    with pytest.raises(ValueError, match=who):
        go_on(**changed[who]).train(resume_from_checkpoint=True)
    assert (run / "metrics.jsonl").read_bytes() == before


def test_an_adapter_of_another_kind_is_refused(make, tmp_path):
    def trainer(steps, **lora):
        adapter = LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM", **lora) if lora else None
        return make(tmp_path / "run", peft_config=adapter, max_steps=steps, calibration_batches=1, save_steps=1)

    trainer(1, r=4, lora_alpha=8).train()
    for other, facts in (({"r": 4, "lora_alpha": 16}, "lora_alpha was 8 .* 16 now"), ({}, "adapter")):
        with pytest.raises(ValueError, match=facts):
            trainer(2, **other).train(resume_from_checkpoint=True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"learning_rate": 1e-5}, [1e-3, 1e-3, 1e-5, 1e-5]),
        ({"lr_scheduler_type": "linear"}, [1e-3, 1e-3, 5e-4, 2.5e-4]),
        ({"learning_rate": 1e-4, "warmup_steps": 4}, [1e-3, 1e-3, 5e-5, 7.5e-5]),
        ({"weight_decay": 0.5}, [1e-3] * 4),
        ({"save_steps": 1}, [1e-3] * 4),
    ],
)
def test_optimization_settings_and_intervals_that_change_take_effect(run, go_on, steps_of, changes, expected):
    go_on(**{"max_steps": 4, "save_steps": 2, **changes}).train(resume_from_checkpoint=True)
    assert [line["learning_rate"] for line in steps_of(run)] == pytest.approx(expected)
    resumed = json.loads((run / "manifest.json").read_text())["resumed"][-1]
    changed = {name: new for name, (_, new) in resumed["changed"].items() if name != "max_steps"}
    assert resumed["step"] == 2 and changed == {name: changes[name] for name in changes if name != "save_steps"}
    groups = torch.load(run / "checkpoint-4" / "optimizer.pt")["param_groups"]
    assert groups[0]["weight_decay"] == changes.get("weight_decay", 0.0)
    assert (run / "checkpoint-3").is_dir() == ("save_steps" in changes)


def test_a_run_resumed_in_its_third_epoch_goes_on_with_the_prompts_of_that_epoch(make, tmp_path, steps_of):
    """24 prompts are three steps: step 6 ends the second epoch, step 8 lies in the third."""
    settings = {
        "global_batch_size": 8,
        "max_steps": 12,
        "save_steps": 2,
        "save_total_limit": 9,
        "calibration_batches": 1,
    }
    make(tmp_path / "whole", **settings).train()
    expected = steps_of(tmp_path / "whole")
    assert len({line["loss"] for line in expected}) == 12
    for began in (6, 8):
        folder = tmp_path / str(began)
        shutil.copytree(tmp_path / "whole" / f"checkpoint-{began}", folder / f"checkpoint-{began}")
        make(folder, **settings).train(resume_from_checkpoint=True)
        for name in ("step", "loss", "weight/math", "epoch", "grad_norm"):
            values = [line[name] for line in steps_of(folder)]
            assert values == pytest.approx([line[name] for line in expected[began:]], abs=1e-6), name


def test_a_resumed_run_uses_the_calibration_of_its_checkpoint(run, go_on, monkeypatch):
    stored = run / "checkpoint-2" / "calibration.json"
    payload = json.loads(stored.read_text())
    payload["mu"]["math"] = 123.0
    stored.write_text(json.dumps(payload))
    monkeypatch.setattr(calibrating.Calibrator, "measure", lambda *a, **k: pytest.fail("calibrated again"))
    trainer = go_on()
    trainer.train(resume_from_checkpoint=True)
    assert trainer.calibration.mu["math"] == 123.0


def test_calibrating_a_resumed_run_is_refused_because_its_student_has_moved(run, go_on):
    trainer = go_on()
    trainer.train(resume_from_checkpoint=True)
    with pytest.raises(RuntimeError, match=r"calibrate\(\).* 3 "):
        trainer.calibrate()


def test_a_finished_run_has_nothing_left_to_resume(run, go_on):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    trainer = go_on(max_steps=2)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 2
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    trained = load_file(run / "checkpoint-2" / "model.safetensors")["model.norm.weight"]
    assert torch.equal(trainer.model.model.norm.weight, trained)


def test_a_run_begun_anew_in_an_old_folder_keeps_nothing_of_the_old_metrics(run, go_on, steps_of):
    go_on(max_steps=1).train()
    assert [line["step"] for line in steps_of(run)] == [1]


def test_checkpoints_that_are_set_aside_are_told_apart(run, caplog):
    for step in (3, 5):
        shutil.copytree(run / "checkpoint-2", run / f"checkpoint-{step}")
    (run / "checkpoint-3" / "manifest.json").unlink()
    foreign = run / "checkpoint-5" / "manifest.json"
    foreign.write_text(json.dumps(json.loads(foreign.read_text()) | {"run": "another"}))
    set_aside(run, json.loads((run / "manifest.json").read_text())["run"], step=1)
    said = {step: next(r.getMessage() for r in caplog.records if f"checkpoint-{step} " in r.getMessage())
            for step in (2, 3, 5)}  # fmt: skip
    assert "step 1" in said[2] and "cut short" in said[3] and "another run" in said[5]
    assert "another run" not in said[2] + said[3]
