"""What policies on Ray are made of, without Ray: checks where the files are, shares of a batch, what is sent."""

from dataclasses import replace

import pytest
import tiny
import torch
import typer

from trustmopd.cli.common import errors
from trustmopd.policies import Rollouts, Teacher, resolve
from trustmopd.policies.graph import Weights
from trustmopd.policies.hosts.ray.actor import PolicyActor, check_weights
from trustmopd.policies.hosts.ray.host import shared_by_tokens
from trustmopd.policies.hosts.ray.policies import _arrays, _sendable
from trustmopd.policies.load import Loader, frozen_twin
from trustmopd.policies.preflight.checks import Checks, preflight
from trustmopd.policies.preflight.model_facts import facts_of
from trustmopd.util.messages import Interrupted

pytestmark = pytest.mark.unit


@pytest.fixture
def checks(base):
    return Checks(facts_of("the student", base, tokenizer=tiny.tokenizer()), 16, 64)


def weights(path, **adapters):
    given = {name: Teacher(adapter=str(each), name=name) for name, each in adapters.items()}
    return Weights("teacher 'math'", Teacher(model=str(path)), "ray", "math", given)


def test_what_is_on_another_machine_is_checked_there_alone(checkpoints, checks, tmp_path):
    def checked(on):
        teachers = {"math": Teacher(model=str(tmp_path / "not-here"), on=on)}
        graph = resolve(teachers, None, checkpoints["base"])
        return preflight(checkpoints["base"], graph, checks)[0]

    assert checked("ray") == tiny.VOCAB
    with pytest.raises(ValueError, match="teacher 'math'.*not-here"):
        checked("resident")


def test_an_actor_makes_the_checks_of_preflight(checks, checkpoints, adapters, base, tmp_path):
    check_weights(weights(checkpoints["math"]), checks)
    check_weights(weights(checkpoints["base"], code=adapters["code"]), checks)
    other = tiny.save(tiny.specialist(base, 9), tmp_path / "template", tiny.tokenizer("{{ messages }}"))
    with pytest.raises(ValueError, match="teacher 'math'.*template"):
        check_weights(weights(other), checks)
    with pytest.raises(ValueError, match="teacher 'math'.*nowhere"):
        check_weights(weights(tmp_path / "nowhere"), checks)
    wider = tiny.adapter(tiny.model(1, hidden=64), tmp_path / "wider", 1)
    with pytest.raises(ValueError, match="teacher 'code'.*wider"):
        check_weights(weights(checkpoints["base"], code=wider), checks)
    with pytest.raises(ValueError, match="256 positions.*300"):
        check_weights(weights(checkpoints["math"]), Checks(checks.student, 16, 300))


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_replicas_share_a_batch_by_tokens(replicas):
    tokens = [100, 1, 1, 50, 50, 2, 98]
    rows = {"a": [0, 1, 2, 3], "b": [6, 5, 4]}
    parts = shared_by_tokens(rows, tokens, replicas)
    assert len(parts) == replicas
    for name, mine in rows.items():
        assert sorted(row for part in parts for row in part.get(name, [])) == sorted(mine)
    loads = [sum(tokens[row] for mine in part.values() for row in mine) for part in parts]
    assert max(loads) - min(loads) <= max(tokens)
    if replicas == 1:
        assert parts == [rows], "in the order in which they are given: to the last bit as a resident policy"


def test_the_initial_student_is_sent_as_a_copy_in_the_dtype_of_frozen_models(base):
    student = frozen_twin(base).requires_grad_(True)
    sent = _sendable(Weights("the reference", None, "ray", "reference"), Loader(torch.bfloat16, student=student))
    parameters = {id(parameter) for parameter in student.parameters()}
    assert {parameter.dtype for parameter in sent.checkpoint.model.parameters()} == {torch.bfloat16}
    assert not any(id(parameter) in parameters for parameter in sent.checkpoint.model.parameters())
    assert all(parameter.requires_grad and parameter.dtype == torch.float32 for parameter in student.parameters())


def test_an_interrupted_run_is_told_how_to_go_on(capsys):
    with pytest.raises(typer.Exit) as ended, errors(again="trustmopd train recipe.yaml --resume"):
        raise Interrupted("teacher 'math' gave no answer.")
    said = capsys.readouterr().err
    assert ended.value.exit_code == 1
    assert "teacher 'math'" in said and "trustmopd train recipe.yaml --resume" in said


def test_a_question_arrives_with_the_views_and_ends_that_were_sent():
    ids, mask = torch.arange(12).view(2, 6), torch.ones(2, 6, dtype=torch.long)
    plain = Rollouts(ids, mask, mask[:, 4:], 2, max_tokens=64)
    view = replace(plain, input_ids=torch.cat([ids[:, :3], ids], dim=1), attention_mask=torch.ones(2, 9), swap=(3, 4))
    sent = _arrays(plain) | {"views": {"math": _arrays(view)}}
    found = PolicyActor()._rollouts(**sent)
    assert found.read_by("code") is found and found.max_tokens == 64 and found.swap is None
    for ours, theirs in ((found, plain), (found.read_by("math"), view)):
        assert torch.equal(ours.input_ids, theirs.input_ids) and ours.swap == theirs.swap
        assert ours.attention_mask.shape == theirs.attention_mask.shape and bool(ours.attention_mask.all())
