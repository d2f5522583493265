"""Responses: the same however they are batched, from the weights and the template that were meant."""

import json
import shutil
from pathlib import Path

import pytest
import tiny
import yaml
from command import run
from evaluated import sums

from trustmopd.evaluation.journal import GRADED, read_lines
from trustmopd.evaluation.sampling import Request, Sampling, make_sampler, render
from trustmopd.recipe import TeacherSource

THINKING = tiny.TEMPLATE.replace("assistant: {% endif %}", "assistant: <think>\n{% endif %}")


def test_transformers_samples_in_batches_as_one_by_one_when_greedy(world: Path) -> None:
    source = TeacherSource(model=str(world / "student"), dtype="float32")
    requests = [Request(str(i), 0, [{"role": "user", "content": "say " * i + "hi"}]) for i in range(5)]
    sampling = Sampling(temperature=0, max_new_tokens=12)
    batched, single = (
        list(make_sampler("transformers", source, batch_size=size).sample(requests, sampling)) for size in (3, 1)
    )
    assert [(r.request, r.response, r.tokens) for r in batched] == [(r.request, r.response, r.tokens) for r in single]
    assert all(0 < reply.tokens <= 12 and reply.truncated == (reply.tokens == 12) for reply in batched)


def test_sampling_follows_the_seed_and_differs_by_sample(world: Path) -> None:
    sampler = make_sampler("transformers", TeacherSource(model=str(world / "student")), batch_size=2)
    requests = [Request("a", sample, [{"role": "user", "content": "hi"}]) for sample in range(4)]

    def sample(seed: int) -> list[str]:
        replies = sampler.sample(requests, Sampling(seed=seed, temperature=1.0, max_new_tokens=20))
        return [reply.response for reply in replies]

    assert sample(0) == sample(0) != sample(1)
    assert len(set(sample(0))) == 4


def test_a_prompt_longer_than_the_context_is_counted_and_not_cut(world: Path) -> None:
    sampler = make_sampler(
        "transformers", TeacherSource(model=str(world / "student")), batch_size=2
    )  # a context of 256 tokens
    requests = [Request(str(n), 0, [{"role": "user", "content": "x" * n}]) for n in (10, 300, 230)]
    replies = {reply.request.id: reply for reply in sampler.sample(requests, Sampling(max_new_tokens=1000))}
    assert replies["300"].overlong and replies["300"].tokens == 0
    assert not replies["10"].overlong and replies["230"].tokens <= 256 - 230


def test_overlong_prompts_have_a_count_of_their_own(world: Path, tmp_path: Path) -> None:
    rows = [{"id": str(n), "prompt": "x" * n, "answer": 1} for n in (3, 300, 400)]  # a context of 256 tokens
    (tmp_path / "long.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "out"
    output = run(
        *("evaluate", world / "student", "--benchmarks", tmp_path / "long.jsonl", "--max-new-tokens", 4, "--out", out)
    )
    found = json.loads((out / "scores.json").read_text())["student"]["benchmarks"]["long"]
    assert (found["responses"], found["overlong"], found["grader_errors"]) == (3, 2, 0)
    assert "2 of 3 responses" in output
    graded = {entry["id"]: entry for entry in read_lines(out / "long.jsonl", GRADED)[0]}
    assert graded["300"]["overlong"] and (graded["300"]["score"], graded["300"]["details"]) == (0, {})


def test_a_template_that_opens_the_reasoning_is_seen() -> None:
    tokenizer = tiny.tokenizer(THINKING)
    assert render(tokenizer, [{"role": "user", "content": "hi"}])[1] == "<think>"
    assert render(tiny.tokenizer(), [{"role": "user", "content": "hi"}])[1] == ""
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="chat template"):
        render(tokenizer, [{"role": "user", "content": "hi"}])


def test_a_template_without_a_system_role_gets_its_text_before_the_users() -> None:
    refuses = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + tiny.TEMPLATE
    )
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    tokenizer = tiny.tokenizer(refuses)
    folded = [{"role": "user", "content": "be brief\n\nhi"}]
    assert render(tokenizer, messages) == render(tiny.tokenizer(), folded) != render(tiny.tokenizer(), messages)
    tokenizer.chat_template = "{{ raise_exception('not today') }}"
    with pytest.raises(ValueError, match=r"system, user .*not today"):
        render(tokenizer, messages)


def in_the_hub_cache(cache: Path, name: str, revisions: dict[str, Path]) -> None:
    """As huggingface_hub leaves what it has downloaded: a snapshot a commit, and names that point at them."""
    folder = cache / f"models--{name.replace('/', '--')}"
    for number, (revision, source) in enumerate(revisions.items()):
        commit = f"{number:040x}"
        shutil.copytree(source, folder / "snapshots" / commit)
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / revision).write_text(commit)


def test_an_adapters_revision_is_not_its_bases(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training gives it to the adapter alone where the teacher has no model of its own."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    base = tiny.model(0)
    newest, first = (tiny.adapter(base, tmp_path / name, seed) for seed, name in enumerate(("newest", "first")))
    in_the_hub_cache(tmp_path / "hub", "org/base", {"main": world / "student"})
    in_the_hub_cache(tmp_path / "hub", "org/adapter", {"main": newest, "v1": first})
    recipe = yaml.safe_load((world / "recipe.yaml").read_text())
    recipe |= {"student": "org/base", "teachers": {"math": {"adapter": "org/adapter", "revision": "v1"}}}
    recipe["evaluation"] |= {"benchmarks": recipe["evaluation"]["benchmarks"][:1], "temperature": 0}
    (tmp_path / "hub.yaml").write_text(yaml.safe_dump(recipe))
    # One response at a time: padding changes last bits, and random weights decide by them.
    options = ("--only", "teacher-math", "--batch-size", 1)
    run("evaluate", tmp_path / "hub.yaml", *options, "--out", tmp_path / "out")
    graded, _ = read_lines(tmp_path / "out" / "teacher-math" / "math_sums.jsonl", GRADED)

    def greedy(adapter: Path) -> list[str]:
        source = TeacherSource(adapter=str(adapter))
        sampler = make_sampler("transformers", source, str(world / "student"), batch_size=1)
        asked = [Request(row["id"], 0, [{"role": "user", "content": row["prompt"]}]) for row in sums(world)[0].rows]
        return [reply.response for reply in sampler.sample(asked, Sampling(temperature=0, max_new_tokens=8))]

    assert [entry["response"] for entry in graded if entry["sample"] == 0] == greedy(first) != greedy(newest)
