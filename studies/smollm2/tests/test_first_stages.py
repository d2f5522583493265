"""From an instruction model to three scored specialists, through the command line."""

import json
import shutil

import pytest
import tiny
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from studies.smollm2.lora import ADAPTER, changes
from trustmopd.quickstart.shipped import digest

SPECIALISTS = [
    f"{section}.{change}"
    for section in ("specialist", "specialist_math")
    for change in (
        *("max_steps=2", "prompts_per_step=2", "generations=2", "micro_batches=2", "max_new_tokens=4", "pool=20"),
        "save_every=1",
    )
]


@pytest.fixture(scope="module")
def instruct(tmp_path_factory):
    model = tiny.model(0)
    model.config.max_position_embeddings = 2048
    return tiny.save(model, tmp_path_factory.mktemp("instruct"))


@pytest.mark.slow
def test_stages_make_the_base_the_specialists_and_their_scores(run, instruct, tmp_path):
    out = tmp_path / "study"
    for arguments in (
        (f"model={instruct}", "--stage", "instruct"),  # the folder keeps it
        ("max_new_tokens=200", "--stage", "base"),  # the solutions that it is shown
        *(("--stage", "specialists", "--only", domain) for domain in ("math", "code", "if")),
        ("--stage", "scores", "--stage", "results"),
    ):
        result = run(out, *SPECIALISTS, *arguments)
        assert result.exit_code == 0, result.output
    scores = json.loads((out / "scores" / "specialists.json").read_text())["scores"]
    assert list(scores) == ["base", "math", "code", "if"]
    assert all(set(row) == {"math", "code", "if", "svamp"} for row in scores.values())
    record = json.loads((out / "specialists" / "math.json").read_text())
    assert (record["steps"], record["faults"], record["scale"]) == (2, [], 0.6)
    page = (out / "results.md").read_text()
    assert "| instruct |" in page and "| math |" in page
    assert max(file.stat().st_size for file in out.rglob("adapter_model.safetensors")) < 16 * 2**20


@pytest.fixture
def finished(base, tmp_path):
    """A study whose specialists have been trained, and whose adapters add the whole of it."""
    out = shutil.copytree(base, tmp_path / "study")
    (out / "specialists").mkdir()
    steps = {name: [0.5] * 2 for name in ("rewards", "kl", "lengths", "seconds", "no_variance")}
    for domain in ("math", "code", "if"):
        record = {"schema_version": 1, "steps": 2, "sha256": digest(out / "adapters" / domain / ADAPTER), **steps}
        (out / "specialists" / f"{domain}.json").write_text(json.dumps(record))
    return out


@pytest.fixture
def stored(finished, run):
    """Runs the stage for mathematics with some settings; the record, and what the adapter adds to the weights."""

    def stored(*settings):
        given = (*SPECIALISTS, "lora.rank=4", "lora.alpha=8", *(f"specialist_math.{each}" for each in settings))
        result = run(finished, *given, "--stage", "specialists", "--only", "math")
        assert result.exit_code == 0, result.output
        record = json.loads((finished / "specialists" / "math.json").read_text())
        assert record["sha256"] == digest(finished / "adapters" / "math" / ADAPTER)
        return record, changes(finished / "adapters" / "math")

    return stored


@pytest.mark.slow
def test_a_finished_specialist_is_stored_at_its_scale_and_continues_from_the_whole(finished, stored):
    whole = changes(finished / "adapters" / "math")
    for asked, scale, made in (
        (("scale=0.5",), 0.5, 2),
        (("scale=0.5",), 0.5, 2),
        (("scale=0.5", "max_steps=3", "learning_rate=0.0"), 0.5, 3),  # from the adapter: there is no checkpoint
        (("scale=1", "max_steps=3"), 1.0, 3),
    ):
        record, found = stored(*asked)
        assert (record["scale"], len(record["rewards"])) == (scale, made)
        for name, value in whole.items():
            assert torch.allclose(found[name], scale * value, rtol=0, atol=0.02 * float(value.abs().max()))


@pytest.mark.parametrize("next_scale", [0.5, 0.25, 1])
def test_a_kill_before_the_record_of_a_scale_does_not_scale_again(finished, stored, next_scale):
    before = (finished / "specialists" / "math.json").read_text()
    _, once = stored("scale=0.5")
    (finished / "specialists" / "math.json").write_text(before)
    record, again = stored(f"scale={next_scale}")
    assert record["scale"] == next_scale
    assert all(torch.equal(again[name], next_scale / 0.5 * value) for name, value in once.items())


def test_a_folder_keeps_its_weights_and_takes_them_from_one_place(run, instruct, tmp_path):
    out = tmp_path / "study"
    assert run(out, f"model={instruct}", "--stage", "instruct").exit_code == 0
    other = shutil.copytree(instruct, tmp_path / "other")
    for slip in ((f"model={other}",), ("--gguf", str(tmp_path / "some.gguf"))):
        result = run(out, *slip, "--stage", "base")
        assert result.exit_code == 1
        assert str(instruct) in result.stderr


def _damaged(slip, instruct, folder):
    """A folder that cannot be the study's instruction model."""
    model, tokenizer = tiny.model(0), tiny.tokenizer(template=None if slip == "no template" else tiny.TEMPLATE)
    model.config.max_position_embeddings = 64 if slip == "short" else 2048
    if slip == "incomplete":
        tiny.incomplete(instruct, folder)
    elif slip == "other layers":  # GPT-2's are Conv1D, which the merge does not know
        config = GPT2Config(vocab_size=tiny.VOCAB, n_embd=8, n_layer=1, n_head=1, n_positions=2048)
        tiny.save(GPT2LMHeadModel(config), folder)
    elif slip == "no tokenizer":
        model.save_pretrained(folder)
    elif slip != "nowhere":
        if slip == "no end":
            tokenizer.eos_token = None
        if slip == "raising template":
            tokenizer.chat_template = "{{ raise_exception('no roles') }}"
        if slip == "another tokenizer":
            tokenizer.add_tokens([f"<{number}>" for number in range(40)])
        tiny.save(model, folder, tokenizer)


@pytest.mark.parametrize(
    ("slip", "fact"),
    {
        "nowhere": "",
        "no tokenizer": "tokenizer",
        "no template": "chat template",
        "raising template": "no roles",
        "no end": "eos_token",
        "another tokenizer": str(tiny.VOCAB),
        "short": "64",
        "other layers": "Conv1D",
        "incomplete": "layers.0.mlp.down_proj",
    }.items(),
)
def test_a_model_that_cannot_be_used_is_named(slip, fact, instruct, run, tmp_path):
    _damaged(slip, instruct, tmp_path / slip)
    result = run(tmp_path / "study", f"model={tmp_path / slip}", "--stage", "instruct")
    assert result.exit_code == 1
    assert str(tmp_path / slip) in result.stderr and fact in result.stderr
    assert "processing_class" not in result.stderr  # which a command line does not have
    assert not (tmp_path / "study" / "card.json").exists()


@pytest.mark.parametrize("given", ["model=", "model= ", "model=''", "model=null"])
def test_a_model_that_is_not_named_is_not_the_packages(given, run, tmp_path):
    result = run(tmp_path / "study", given, "--stage", "instruct")
    assert result.exit_code == 1
    assert "model=" in result.stderr


def test_a_model_whose_weights_have_changed_is_not_the_one_that_the_folder_was_begun_with(run, instruct, tmp_path):
    model, out = shutil.copytree(instruct, tmp_path / "model"), tmp_path / "study"
    assert run(out, f"model={model}", "--stage", "instruct").exit_code == 0
    other = tiny.model(1)
    other.config.max_position_embeddings = 2048
    tiny.save(other, model)
    result = run(out, "--stage", "base")
    assert result.exit_code == 1
    assert str(model) in result.stderr and "fingerprint" in result.stderr
    assert not (out / "adapters").exists()


def test_scores_are_measured_once(run, instruct, tmp_path):
    out = tmp_path / "study"
    responses = out / "scores" / "instruct-responses.jsonl"
    for settings, measured in (((f"model={instruct}",), True), ((), False), (("scoring.prompts=3",), True)):
        responses.unlink(missing_ok=True)
        result = run(out, *settings, "--stage", "instruct")
        assert result.exit_code == 0, result.output
        assert responses.exists() == measured
        assert "instruct" in result.stdout


def test_solutions_that_are_all_too_long_are_told_by_the_setting(run, instruct, tmp_path):
    result = run(tmp_path / "study", f"model={instruct}", "--stage", "base")  # six tokens
    assert result.exit_code == 1
    assert "max_new_tokens=6" in result.stderr
    assert not (tmp_path / "study" / "card.json").exists()  # nothing binds the folder to this model
