"""Checks that cost no GPU hour: they read configurations, tokenizers and files, and load no weights."""

import copy
import json
import shutil
import warnings
from pathlib import Path

import pytest
import tiny
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import normalizers
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from trustmopd.policies import Teacher, load_tokenizer, resolve
from trustmopd.policies.preflight.checks import Checks, preflight
from trustmopd.policies.preflight.model_facts import check_files, facts_of, positions_of

pytestmark = pytest.mark.unit
LONGEST = 30
ROLES = ["the student", "teacher 'code'", "the reference"]


@pytest.fixture
def run(checkpoints):
    """Preflight of two teachers and what is named; the number of vocabulary rows that all have."""

    def run(*, student=None, teachers=None, reference=None, with_reference=True, num_candidates=16, **options):
        student = checkpoints["base"] if student is None else student
        teachers = {name: checkpoints[name] for name in ("math", "code")} if teachers is None else teachers
        facts = facts_of("the student", student, tokenizer=tiny.tokenizer())
        graph = resolve(teachers, reference, student, with_reference=with_reference)
        return preflight(student, graph, Checks(facts, num_candidates, LONGEST, **options))[0]

    return run


@pytest.fixture
def refused(run):
    """Preflight is refused in a message with all of these facts."""

    def refused(*facts, **parts):
        with pytest.raises(ValueError) as refusal:
            run(**parts)
        message = str(refusal.value)
        assert [fact for fact in facts if str(fact) not in message] == [], message

    return refused


def in_role(role, model, checkpoints):
    if role == "teacher 'code'":
        return {"teachers": {"math": checkpoints["math"], "code": model}}
    return {role.removeprefix("the "): model}


def test_a_pool_of_paths_is_checked_without_loading_any_weights(run, checkpoints, adapters, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", refuse)
    monkeypatch.setattr(PreTrainedModel, "from_pretrained", refuse)
    teachers = {"math": checkpoints["math"], "code": Path(checkpoints["code"]), "if": Teacher(adapter=adapters["if"])}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(teachers=teachers, reference=Teacher(model=checkpoints["base"])) == tiny.VOCAB


# ---- One model


def fewer_rows(model, folder):
    tiny.save(tiny.model(1, vocab=tiny.VOCAB - 3), folder)
    return [tiny.VOCAB - 3, tiny.VOCAB]


def cut_short(model, folder):
    tiny.save(model, folder)
    half(folder / "model.safetensors")
    return [folder / "model.safetensors"]


def half(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def without_a_shard(model, folder):
    model.save_pretrained(folder, max_shard_size="20KB")
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    return [shard.name]


def without_a_layer(model, folder):
    tiny.incomplete(Path(tiny.save(model, folder.with_name("whole"))), folder)
    return [folder, "layers.0.mlp.down_proj"]


def nowhere(model, folder):
    return [folder]


def few_positions(model, folder):
    short = copy.deepcopy(model)
    short.config.max_position_embeddings = LONGEST - 1
    tiny.save(short, folder)
    return [LONGEST - 1, LONGEST]


def few_learned_positions(model, folder):
    learned = GPT2Config(vocab_size=tiny.VOCAB, n_positions=24, n_embd=8, n_layer=1, n_head=1, eos_token_id=2)
    tiny.save(GPT2LMHeadModel(learned), folder)
    return [24, LONGEST]


def an_adapter(model, folder):
    tiny.adapter(model, folder, 1)
    return [folder, "LoRA adapter"]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "spoil",
    [
        *(fewer_rows, cut_short, without_a_shard, without_a_layer, nowhere),
        *(few_positions, few_learned_positions, an_adapter),
    ],
)
def test_a_model_that_cannot_serve_is_refused_in_every_role(refused, spoil, role, base, checkpoints, tmp_path):
    folder = tmp_path / "spoilt"
    refused(role, *spoil(base, folder), **in_role(role, str(folder), checkpoints))


def test_files_cut_anywhere_are_not_whole(checkpoints, tmp_path):
    check_files("teacher 'math'", checkpoints["math"])
    check_files("teacher 'math'", "somebody/some-model")  # a Hub id has no local files
    whole = (Path(checkpoints["math"]) / "model.safetensors").read_bytes()
    for size in (0, 4, 100, len(whole) - 1):
        folder = tmp_path / str(size)
        shutil.copytree(checkpoints["math"], folder)
        (folder / "model.safetensors").write_bytes(whole[:size])
        with pytest.raises(ValueError, match=rf"teacher 'math': .*model.safetensors \({size} bytes\)"):
            check_files("teacher 'math'", str(folder))


@pytest.mark.parametrize("role", ROLES)
def test_a_model_that_was_cast_as_a_whole_has_rounded_positions_and_is_refused(run, refused, role, checkpoints):
    loaded = AutoModelForCausalLM.from_pretrained(checkpoints["if"], dtype=torch.bfloat16)
    assert run(**in_role(role, loaded, checkpoints)) == tiny.VOCAB
    cast = AutoModelForCausalLM.from_pretrained(checkpoints["if"]).to(torch.bfloat16)
    refused(role, "inv_freq", "bfloat16", **in_role(role, cast, checkpoints))


@pytest.mark.parametrize(
    "slip",
    [
        {"student": "./models/bse"},
        {"teachers": {"math": "models/own/bse"}},
        {"teachers": {"math": Teacher(adapter="./bse")}},
    ],
)
def test_a_slip_in_a_path_is_not_looked_for_on_the_hub(refused, tmp_path, monkeypatch, slip):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("somebody asked the network"))
    refused("bse does not exist", "the student" if "student" in slip else "teacher 'math'", **slip)


def test_a_student_that_does_not_exist_is_named_when_its_tokenizer_would_be_read(tmp_path):
    with pytest.raises(ValueError, match=r"the student.*nowhere"):
        load_tokenizer(str(tmp_path / "nowhere"))


def test_positions_that_are_stretched_count():
    config = copy.deepcopy(tiny.model(0).config)
    config.max_position_embeddings = 20
    config.rope_parameters = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    assert positions_of(config) == 80


# ---- Models that read the student's tokens otherwise


def other_tokens(model, folder):
    tiny.save(model, folder, tiny.tokenizer(characters=tiny.CHARACTERS[::-1]))
    return ["vocabulary", repr(tiny.CHARACTERS[0])]


def other_splits(model, folder):
    tokenizer = tiny.tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("item", "xyz")
    tiny.save(model, folder, tokenizer)
    return ["- '", "['x', 'y', 'z'", "['i', 't', 'e', 'm']"]


def other_end(model, folder):
    model = copy.deepcopy(model)
    model.config.eos_token_id = model.generation_config.eos_token_id = 7
    tiny.save(model, folder)
    return ["[2, 7]", "[2]", "allow_template_mismatch"]


def other_template(model, folder):
    tiny.save(model, folder, tiny.tokenizer(tiny.TEMPLATE.replace("assistant:", "answer:")))
    return ["answer:", "assistant:", "allow_template_mismatch=True", "training.allow_template_mismatch=true"]


@pytest.mark.parametrize("role", ROLES[1:])
@pytest.mark.parametrize("spoil", [other_tokens, other_splits, other_end, other_template])
def test_a_model_with_another_tokenizer_is_refused_and_templates_and_ends_may_be_allowed(
    run, refused, spoil, role, specialists, checkpoints, tmp_path
):
    folder = tmp_path / "stranger"
    facts, parts = spoil(specialists["if"], folder), in_role(role, str(folder), checkpoints)
    refused(role, folder, *facts, **parts)
    if spoil in (other_end, other_template):
        with pytest.warns(UserWarning, match=role):
            run(**parts, allow_template_mismatch=True)
    else:
        refused(role, folder, **parts, allow_template_mismatch=True)


def test_a_loaded_teacher_that_ends_responses_otherwise_is_refused_as_one_on_disk_is(refused, specialists, tmp_path):
    other_end(specialists["if"], tmp_path / "stranger")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "stranger")
    loaded.config._name_or_path = ""
    refused("teacher 'if'", "[2, 7]", "[2]", teachers={"if": loaded})


def test_the_vocabulary_is_what_all_models_have_rows_for(run, refused, checkpoints, tmp_path):
    padded = tiny.save(tiny.model(3, vocab=tiny.VOCAB + 28), tmp_path / "padded")
    assert run(teachers={"math": padded}) == tiny.VOCAB
    assert run(student=padded, reference=checkpoints["base"]) == tiny.VOCAB
    refused(f"num_candidates = {tiny.VOCAB + 1}", tiny.VOCAB, num_candidates=tiny.VOCAB + 1)


def test_a_checkpoint_without_a_tokenizer_is_taken_at_its_word(run, specialists, tmp_path):
    specialists["math"].save_pretrained(tmp_path / "bare")
    assert run(teachers={"math": str(tmp_path / "bare")}) == tiny.VOCAB


def test_every_end_of_a_response_counts_the_models_and_the_tokenizers(base, tmp_path):
    model = tiny.model(0)
    model.generation_config.eos_token_id = [2, 9]
    folder = tiny.save(model, tmp_path / "two-ends")
    assert facts_of("teacher 'math'", folder).eos_ids == {2, 9}
    assert facts_of("teacher 'math'", base).eos_ids == {2}


# ---- Adapters


def test_an_adapter_that_is_none_or_cut_short_is_refused(refused, base, checkpoints, tmp_path):
    refused("teacher 'math'", "adapter_config.json", "`model`", teachers={"math": Teacher(adapter=checkpoints["math"])})
    adapter = tiny.adapter(base, tmp_path / "adapter", seed=1)
    half(adapter / "adapter_model.safetensors")
    refused("teacher 'math'", adapter / "adapter_model.safetensors", teachers={"math": Teacher(adapter=adapter)})


def test_an_adapter_with_another_chat_template_is_refused(refused, base, tmp_path):
    adapter = tiny.adapter(base, tmp_path / "adapter", 1)
    tiny.tokenizer(template="{{ messages }}").save_pretrained(adapter)
    refused("teacher 'math'", "{{ messages }}", teachers={"math": Teacher(adapter=adapter)})


def test_an_adapter_that_was_never_trained_is_refused(refused, base, tmp_path):
    fresh = get_peft_model(copy.deepcopy(base), LoraConfig(r=2, target_modules=["q_proj"]))
    fresh.save_pretrained(tmp_path / "fresh")
    refused("'text'", tmp_path / "fresh", teachers={"text": Teacher(adapter=tmp_path / "fresh")})


@pytest.mark.parametrize("shape", [{"layers": 3}, {"hidden": 64}])
def test_an_adapter_of_another_shape_is_refused_though_its_base_has_the_same_name(refused, tmp_path, shape):
    other = tiny.model(0, **shape)
    other.config._name_or_path = tiny.save(other, tmp_path / "elsewhere" / "base")
    adapter = tiny.adapter(other, tmp_path / "adapter", 1)
    refused("'text'", adapter, "lora_A", teachers={"text": Teacher(adapter=adapter)})


def test_an_adapter_of_other_weights_is_refused_where_its_base_is_at_hand(run, refused, tmp_path):
    def adapter_over(seed, folder):
        trained_on = AutoModelForCausalLM.from_pretrained(tiny.save(tiny.model(seed), folder / "base"))
        return tiny.adapter(trained_on, folder / "adapter", 1)

    other = adapter_over(7, tmp_path / "other")
    refused("'text'", other, tmp_path / "other" / "base", teachers={"text": Teacher(adapter=other)})
    run(teachers={"text": Teacher(adapter=adapter_over(0, tmp_path / "copied"))})  # the same weights, somewhere else


# ---- Policies that are the same, and references


@pytest.mark.parametrize("kind", ["copied", "sharded", "rounded", "linked"])
def test_a_teacher_with_the_reference_s_weights_is_refused_where_the_rule_scores_it(
    run, refused, base, checkpoints, tmp_path, kind
):
    other = tmp_path / "other"
    if kind == "copied":
        shutil.copytree(checkpoints["base"], other)
    elif kind == "linked":
        other.symlink_to(checkpoints["base"])
    else:
        stored = copy.deepcopy(base).bfloat16() if kind == "rounded" else base
        stored.save_pretrained(other, max_shard_size="20KB")
    teachers = {"math": checkpoints["math"], "text": str(other)}
    refused("'text'", other, checkpoints["base"], "teachers.text=null", teachers=teachers)
    assert run(teachers=teachers, with_reference=False) == tiny.VOCAB


def test_the_same_weights_with_other_positions_are_another_policy(run, checkpoints, tmp_path):
    stretched = shutil.copytree(checkpoints["base"], tmp_path / "stretched")
    config = json.loads((stretched / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 5e5
    (stretched / "config.json").write_text(json.dumps(config))
    assert run(teachers={"text": str(stretched)}) == tiny.VOCAB


@pytest.mark.parametrize("with_reference", [True, False])
def test_one_checkpoint_under_two_names_is_refused_by_every_rule(refused, checkpoints, tmp_path, with_reference):
    again = str(shutil.copytree(checkpoints["math"], tmp_path / "again"))
    refused("'math'", "'law'", teachers={"math": checkpoints["math"], "law": again}, with_reference=with_reference)


def itself(checkpoints, folder):
    return checkpoints["code"], [checkpoints["code"], "its own reference"]


def of_another_vocabulary(checkpoints, folder):
    GPT2LMHeadModel(GPT2Config(vocab_size=24, n_embd=16, n_layer=1, n_head=2)).save_pretrained(folder)
    return folder, ["24", "the student's tokenizer"]


def missing(checkpoints, folder):
    return folder, [folder]


@pytest.mark.parametrize("kind", [itself, of_another_vocabulary, missing])
def test_a_teachers_own_reference_that_cannot_serve_is_refused(refused, checkpoints, tmp_path, kind):
    own, facts = kind(checkpoints, tmp_path / "own")
    refused("teacher 'code'", *facts, teachers={"code": Teacher(checkpoints["code"], reference=own)})


def test_a_rule_that_reads_no_reference_does_not_ask_for_its_files(run, checkpoints, tmp_path):
    teachers = {"code": Teacher(checkpoints["code"], reference=tmp_path / "nowhere")}
    assert run(teachers=teachers, with_reference=False) == tiny.VOCAB


def test_a_teacher_of_another_shape_than_the_common_reference_asks_for_its_own(run, checkpoints, tmp_path):
    small = tiny.save(tiny.model(3, layers=1), tmp_path / "small")
    with pytest.warns(UserWarning, match=r"'code' \(llama, 1 layers of 32\) .* teachers\.code\.reference"):
        run(teachers={"math": checkpoints["math"], "code": small})
    grown = tiny.save(tiny.specialist(tiny.model(3, layers=1), 1), tmp_path / "grown")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(teachers={"code": Teacher(grown, reference=small)})
        run(teachers={"code": Teacher(small, reference="student")})
        run(teachers={"code": small}, with_reference=False)
