"""Checks that cost no GPU hour: they read configurations and tokenizers, never weights."""

import copy
import shutil
import warnings
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from trustmopd.policies import Teacher, build_pool, resolve
from trustmopd.policies.preflight.checks import Checks, preflight
from trustmopd.policies.preflight.model_facts import check_files, facts_of


def run(checkpoints, teachers, *, student=None, reference=None, with_reference=True):
    student = student or checkpoints["base"]
    graph = resolve(teachers, reference, student, with_reference=with_reference)
    facts = facts_of("the student", student, tokenizer=tiny.tokenizer())
    return preflight(student, graph, Checks(facts, 16))


def test_a_pool_of_paths_is_checked_without_loading_any_weights(checkpoints, adapters, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", refuse)
    monkeypatch.setattr(PreTrainedModel, "from_pretrained", refuse)
    teachers = {"math": checkpoints["math"], "code": Path(checkpoints["code"]), "if": Teacher(adapter=adapters["if"])}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(checkpoints, teachers, reference=Teacher(model=checkpoints["base"])) == tiny.VOCAB


def test_the_vocabulary_is_what_all_models_have_rows_for(checkpoints, tmp_path):
    padded = tiny.save(tiny.model(3, vocab=tiny.VOCAB + 28), tmp_path / "padded")
    assert run(checkpoints, {"math": padded}) == tiny.VOCAB
    assert run(checkpoints, {"math": checkpoints["math"]}, student=padded) == tiny.VOCAB


def test_the_students_own_tokenizer_must_fit_the_student(checkpoints, tmp_path):
    narrow = tiny.save(tiny.model(0, vocab=tiny.VOCAB - 3), tmp_path / "narrow")
    with pytest.raises(ValueError, match=rf"{tiny.VOCAB - 3}"):
        run(checkpoints, {"math": checkpoints["math"]}, student=narrow)


def test_a_checkpoint_without_a_tokenizer_is_taken_at_its_word(checkpoints, specialists, tmp_path):
    specialists["math"].save_pretrained(tmp_path / "bare")
    assert run(checkpoints, {"math": str(tmp_path / "bare")}) == tiny.VOCAB


def test_every_end_of_a_response_counts_the_models_and_the_tokenizers(base, tmp_path):
    model = tiny.model(0)
    model.generation_config.eos_token_id = [2, 9]
    folder = tiny.save(model, tmp_path / "two-ends")
    assert facts_of("teacher 'math'", folder).eos_ids == {2, 9}
    assert facts_of("teacher 'math'", base).eos_ids == {2}


def test_a_folder_that_is_no_adapter_is_refused(checkpoints):
    with pytest.raises(ValueError, match=r"(?s)teacher 'math': .*adapter_config.json.*`model`"):
        run(checkpoints, {"math": Teacher(adapter=checkpoints["math"])})


def test_whole_files_pass_and_files_cut_anywhere_do_not(checkpoints, tmp_path):
    check_files("teacher 'math'", checkpoints["math"])
    whole = (Path(checkpoints["math"]) / "model.safetensors").read_bytes()
    for size in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        folder = tmp_path / str(size)
        shutil.copytree(checkpoints["math"], folder)
        (folder / "model.safetensors").write_bytes(whole[:size])
        with pytest.raises(ValueError, match=rf"teacher 'math': .*model.safetensors \({size} bytes\)"):
            check_files("teacher 'math'", str(folder))


def test_a_hub_id_has_no_local_files_to_check():
    check_files("teacher 'math'", "somebody/some-model")


def test_weights_that_lack_a_layer_are_refused_when_they_are_loaded(checkpoints, tmp_path, base):
    """A whole file can still lack a tensor, and a freshly initialised layer would teach noise."""
    folder = Path(shutil.copytree(checkpoints["math"], tmp_path / "lacking"))
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"teacher 'math'.*down_proj"):
        build_pool(
            resolve({"math": str(folder)}, None, base, with_reference=False),
            copy.deepcopy(base),
            device=torch.device("cpu"),
            dtype=torch.float32,
        )


@pytest.mark.parametrize("role", ["student", "math"])
def test_a_model_that_was_cast_as_a_whole_has_rounded_positions_and_is_refused(role, checkpoints):
    loaded = AutoModelForCausalLM.from_pretrained(checkpoints["math"], dtype=torch.bfloat16)
    cast = AutoModelForCausalLM.from_pretrained(checkpoints["math"]).to(torch.bfloat16)
    for model, refused in ((loaded, False), (cast, True)):
        given = {"student": model} if role == "student" else {}
        teachers = {"code": checkpoints["code"]} if role == "student" else {"math": model}
        if not refused:
            assert run(checkpoints, teachers, **given) == tiny.VOCAB
            continue
        with pytest.raises(ValueError, match=f"{role}.*inv_freq.*bfloat16"):
            run(checkpoints, teachers, **given)


def test_a_teacher_of_another_shape_than_the_common_reference_asks_for_its_own(checkpoints, tmp_path):
    small = tiny.save(tiny.model(3, layers=1), tmp_path / "small")
    with pytest.warns(UserWarning, match=r"'code' \(llama, 1 layers of 32\) .* teachers\.code\.reference"):
        run(checkpoints, {"math": checkpoints["math"], "code": small})
    grown = tiny.save(tiny.specialist(tiny.model(3, layers=1), 1), tmp_path / "grown")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(checkpoints, {"code": Teacher(grown, reference=small)})
        run(checkpoints, {"code": Teacher(small, reference="student")})
        run(checkpoints, {"code": small}, with_reference=False)
