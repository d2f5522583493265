"""What the pool answers is what each policy would have said on its own, whoever shares its weights."""

import copy
import warnings

import pytest
import tiny
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn

from trustmopd.policies import REFERENCE, Rollouts, Teacher, build_pool, fingerprint, resolve
from trustmopd.policies.load import frozen_twin

pytestmark = pytest.mark.unit

LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
CPU = torch.device("cpu")
#: Prompt and response lengths of a batch: a short prompt, a long one, a response of one token, an empty one.
LENGTHS = [(3, 5), (9, 2), (1, 1), (6, 0), (4, 5)]


def rollouts(lengths=LENGTHS):
    """Prompts padded on the left, responses on the right, as the trainer hands them over."""
    generator = torch.Generator().manual_seed(0)
    prompt_width, response_width = (max(length) for length in zip(*lengths, strict=True))
    ids = torch.zeros(len(lengths), prompt_width + response_width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (prompt, response) in enumerate(lengths):
        span = slice(prompt_width - prompt, prompt_width + response)
        ids[row, span] = torch.randint(4, tiny.VOCAB, (prompt + response,), generator=generator)
        mask[row, span] = 1
    return ids, mask, mask[:, prompt_width:].clone()


@torch.no_grad()
def plain_answer(model, ids, mask, response):
    """One response alone, without padding: the state before each of its tokens."""
    if response == 0:
        return torch.zeros(0, model.config.hidden_size)
    states = model.model(input_ids=ids[mask.bool()][None], use_cache=False).last_hidden_state[0]
    return states[-1 - response : -1]


def pool_of(student, teachers, *, reference=None, with_reference=True, placement="resident"):
    graph = resolve(teachers, reference, student, with_reference=with_reference, placement=placement)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where the adapters say that they were trained
        return build_pool(graph, student, device=CPU, dtype=torch.float32)


CANDIDATES = torch.tensor([5, 50, 7, 99])


def assert_logits(answer, rows, states, model):
    """An answer's logits at these candidates are those of the plain forward's `states`, row after row."""
    states = torch.cat(states)
    ids = CANDIDATES.repeat(len(states), 1)
    found = answer.logits_at(rows, ids)
    expected = model.lm_head(states)[:, CANDIDATES].float()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def assert_answers(pool, models, lengths=LENGTHS, at_a_time=2, **budget):
    ids, mask, response_mask = rollouts(lengths)
    answers = pool.ask(Rollouts(ids, mask, response_mask, at_a_time, **budget))
    assert list(answers) == list(models)
    rows = list(range(len(lengths)))[::-1]  # as after a shuffle
    for name, model in models.items():
        states = [plain_answer(model, ids[row], mask[row], lengths[row][1]) for row in rows]
        assert_logits(answers[name], rows, states, model)


def merged(base, adapter):
    return PeftModel.from_pretrained(copy.deepcopy(base), adapter).merge_and_unload().eval()


@pytest.mark.parametrize("at_a_time", [1, 2, 5, 64])
@pytest.mark.parametrize("placement", ["resident", "offload"])
def test_an_answer_is_the_models_own_forward_without_padding(base, specialists, at_a_time, placement):
    pool = pool_of(copy.deepcopy(base), copy.deepcopy(specialists), placement=placement)
    assert pool.teachers == list(specialists)
    for _ in range(2):  # offloaded weights must come back for the next batch
        assert_answers(pool, {**specialists, REFERENCE: base}, at_a_time=at_a_time)


@pytest.mark.parametrize("max_tokens", [1, 16, 30, 1000])
def test_an_answer_does_not_depend_on_the_token_budget(base, specialists, max_tokens):
    pool = pool_of(copy.deepcopy(base), specialists)
    assert_answers(pool, {**specialists, REFERENCE: base}, max_tokens=max_tokens, bytes_on_device=0)


def test_a_policy_reads_without_a_mask_under_the_budget_and_only_its_own_rows(base, specialists):
    pool = pool_of(copy.deepcopy(base), copy.deepcopy(specialists), with_reference=False)
    seen = {name: [] for name in specialists}
    for name, member in pool.members.items():
        note = lambda module, args, kwargs, name=name: seen[name].append(kwargs)  # noqa: E731
        member.host.model.model.register_forward_pre_hook(note, with_kwargs=True)
    ids, mask, response_mask = rollouts()
    rows = {"math": [4, 0, 1], "if": [2]}
    pool.ask(Rollouts(ids, mask, response_mask, 1, rows, max_tokens=16))
    lengths = mask.sum(dim=1).tolist()
    for name, passes in seen.items():
        assert all(each.get("attention_mask") is None for each in passes)
        shapes = [tuple(each["input_ids"].shape) for each in passes]
        assert sum(count for count, _ in shapes) == len(rows.get(name, []))
        assert all(count == 1 or count * width <= 16 for count, width in shapes)
        assert max([width for _, width in shapes], default=0) == max(
            [lengths[r] for r in rows.get(name, [])], default=0
        )


def test_a_batch_of_empty_responses_has_empty_answers(base, specialists):
    assert_answers(pool_of(copy.deepcopy(base), specialists), {**specialists, REFERENCE: base}, [(3, 0), (5, 0)])


def test_rows_limit_who_is_asked_about_what(base, specialists):
    pool = pool_of(copy.deepcopy(base), specialists, with_reference=False)
    ids, mask, response_mask = rollouts()
    answers = pool.ask(Rollouts(ids, mask, response_mask, 2, {"math": [4, 0], "if": [1]}))
    assert {name: set(answer.rows) for name, answer in answers.items()} == {"math": {0, 4}, "code": set(), "if": {1}}
    for row, name in ((0, "math"), (4, "math"), (1, "if")):
        states = plain_answer(specialists[name], ids[row], mask[row], LENGTHS[row][1])
        assert_logits(answers[name], [row], [states], specialists[name])
    with pytest.raises(LookupError, match="math.*row 1"):
        answers["math"].logits_at([0, 1], CANDIDATES.repeat(7, 1))


def test_released_answers_are_gone(base, specialists):
    pool = pool_of(copy.deepcopy(base), specialists)
    answers = pool.ask(Rollouts(*rollouts(), 2))
    answers.release()
    assert not any(answer.rows for answer in answers.values())
    with pytest.raises(LookupError):
        answers["code"].logits_at([0], CANDIDATES.repeat(5, 1))


def test_tokens_that_a_tool_wrote_are_read_but_not_answered(base, specialists):
    ids, mask, response_mask = rollouts()
    response_mask[0, 1:3] = 0
    pool = pool_of(copy.deepcopy(base), specialists, with_reference=False)
    answers = pool.ask(Rollouts(ids, mask, response_mask, 5))
    expected = plain_answer(specialists["code"], ids[0], mask[0], 5)[[0, 3, 4]]
    assert_logits(answers["code"], [0], [expected], specialists["code"])


@pytest.mark.parametrize("vocab_size", [None, tiny.VOCAB - 7])
def test_the_likeliest_tokens_are_those_of_the_whole_head_without_its_padding(base, specialists, vocab_size):
    student = copy.deepcopy(base)
    graph = resolve(specialists, None, student, with_reference=False)
    pool = build_pool(graph, student, device=CPU, dtype=torch.float32, vocab_size=vocab_size)
    ids, mask, response_mask = rollouts()
    answer = pool.ask(Rollouts(ids, mask, response_mask, 2))["math"]
    found = answer.top([4, 3, 0], 6)  # the second has no token
    states = torch.cat([plain_answer(specialists["math"], ids[row], mask[row], 5) for row in (4, 0)])
    logits = specialists["math"].lm_head(states)[:, :vocab_size].detach()
    expected = logits.log_softmax(dim=-1).topk(6)
    assert torch.equal(found.ids, expected.indices)
    torch.testing.assert_close(found.logp, expected.values)
    torch.testing.assert_close(found.log_partition, logits.logsumexp(dim=-1))
    with pytest.raises(LookupError, match="math.*row 9"):
        answer.top([9], 6)


# ---- Adapters


@pytest.mark.parametrize("placement", ["resident", "offload"])
def test_adapters_on_one_base_answer_as_merged_models_and_the_bare_base_is_the_reference(base, adapters, placement):
    pool = pool_of(
        copy.deepcopy(base), {name: Teacher(adapter=path) for name, path in adapters.items()}, placement=placement
    )
    assert len({id(member.host) for member in pool.members.values()}) == 1
    models = {name: merged(base, path) for name, path in adapters.items()}
    for _ in range(2):
        assert_answers(pool, {**models, REFERENCE: base})


def test_adapters_and_full_checkpoints_mix_in_one_pool(base, specialists, adapters):
    teachers = {
        "math": Teacher(adapter=adapters["math"]),
        "code": specialists["code"],
        "if": Teacher(adapter=adapters["if"]),
    }
    models = {
        "math": merged(base, adapters["math"]),
        "code": specialists["code"],
        "if": merged(base, adapters["if"]),
        REFERENCE: base,
    }
    assert_answers(pool_of(copy.deepcopy(base), teachers), models)


def test_adapters_sit_on_the_reference_where_one_is_given(base, specialists, adapters):
    reference = Teacher(model=copy.deepcopy(specialists["code"]))
    pool = pool_of(copy.deepcopy(base), {"math": Teacher(adapter=adapters["math"])}, reference=reference)
    models = {"math": merged(specialists["code"], adapters["math"]), REFERENCE: specialists["code"]}
    assert_answers(pool, models)


def test_an_adapter_over_a_base_of_its_own_is_merged_into_it(base, specialists, adapters, checkpoints):
    own = Teacher(model=checkpoints["if"], adapter=adapters["math"])
    pool = pool_of(copy.deepcopy(base), {"math": own})
    expected = merged(specialists["if"], adapters["math"])
    assert not isinstance(pool.members["math"].host.model, PeftModel)
    assert pool.members["math"].origin.fingerprint == fingerprint(expected)
    assert pool.members["math"].origin.source == f"{checkpoints['if']} + {adapters['math']}"
    assert_answers(pool, {"math": expected, REFERENCE: base})


def test_merging_an_adapter_into_a_loaded_model_leaves_the_callers_model_alone(base, adapters):
    mine = copy.deepcopy(base)
    pool_of(copy.deepcopy(base), {"math": Teacher(model=mine, adapter=adapters["math"])})
    assert fingerprint(mine) == fingerprint(base)


def test_two_adapters_over_one_loaded_model_are_two_teachers(base, adapters):
    shared = copy.deepcopy(base)
    teachers = {name: Teacher(model=shared, adapter=adapters[name]) for name in ("math", "code")}
    models = {name: merged(base, adapters[name]) for name in teachers}
    assert_answers(pool_of(copy.deepcopy(base), teachers, with_reference=False), models)


def test_an_adapter_over_the_loaded_student_is_not_forgotten(base, adapters):
    student = copy.deepcopy(base)
    pool = pool_of(student, {"math": Teacher(model=student, adapter=adapters["math"])})
    assert_answers(pool, {"math": merged(base, adapters["math"]), REFERENCE: base})
    assert fingerprint(student) == fingerprint(base)


def test_the_adapters_of_a_lora_students_teachers_do_not_reach_the_student(base, adapters):
    student = get_peft_model(copy.deepcopy(base), LORA)
    pool = pool_of(student, {name: Teacher(adapter=path) for name, path in adapters.items()})
    models = {name: merged(base, path) for name, path in adapters.items()}
    assert_answers(pool, {**models, REFERENCE: base})
    assert list(student.peft_config) == ["default"]
    assert student.active_adapters == ["default"]
    trainable = {name for name, parameter in student.named_parameters() if parameter.requires_grad}
    assert trainable == {name for name, _ in student.named_parameters() if "lora_" in name}
    with torch.no_grad():  # training moves the student; its teachers and reference stay
        for name, parameter in student.named_parameters():
            if "lora_B" in name:
                parameter += 1.0
    assert_answers(pool, {**models, REFERENCE: base})


def test_a_lora_student_and_its_whole_pool_share_one_set_of_weights(base, adapters):
    student = get_peft_model(copy.deepcopy(base), LORA)
    pool = pool_of(student, {name: Teacher(adapter=path) for name, path in adapters.items()})
    mine = {id(parameter) for name, parameter in student.named_parameters() if "lora_" not in name}
    theirs = {
        id(parameter) for name, parameter in pool.members["math"].host.model.named_parameters() if "lora_" not in name
    }
    assert theirs == mine


def test_an_adapter_that_was_trained_before_is_part_of_the_initial_student(base, adapters):
    student = PeftModel.from_pretrained(copy.deepcopy(base), adapters["math"], is_trainable=True)
    teachers = {"code": Teacher(adapter=adapters["code"])}
    pool = pool_of(student, {"if": tiny.specialist(base, 5)})
    assert_answers(pool, {"if": tiny.specialist(base, 5), REFERENCE: merged(base, adapters["math"])})
    both = pool_of(student, teachers)
    ids, mask, response_mask = rollouts()
    answers = both.ask(Rollouts(ids, mask, response_mask, 5))
    whole = merged(base, adapters["math"])
    assert_logits(answers[REFERENCE], [0], [plain_answer(whole, ids[0], mask[0], 5)], whole)


def test_an_adapter_for_another_architecture_is_refused_by_name(base, tmp_path):
    wide = tiny.adapter(tiny.model(0, hidden=64), tmp_path / "wide", seed=1)
    with pytest.raises(ValueError, match=r"(?s)teacher 'math': .*wide"):
        pool_of(copy.deepcopy(base), {"math": Teacher(adapter=wide)})


# ---- The frozen twin


def test_a_frozen_twin_shares_frozen_tensors_and_copies_trainable_ones(base):
    student = get_peft_model(copy.deepcopy(base), LORA)
    twin = frozen_twin(student)
    assert twin is not student
    for (name, mine), (_, theirs) in zip(student.named_parameters(), twin.named_parameters(), strict=True):
        assert torch.equal(mine, theirs), name
        assert (mine is theirs) == (not mine.requires_grad), name
        assert not theirs.requires_grad, name
    assert any(parameter.requires_grad for parameter in student.parameters())


def test_a_frozen_twin_of_a_full_student_stays_where_the_student_began(base):
    student = copy.deepcopy(base)
    twin = frozen_twin(student, torch.bfloat16)
    assert {parameter.dtype for parameter in twin.parameters()} == {torch.bfloat16}
    with torch.no_grad():
        for parameter in student.parameters():
            parameter += 1.0
    for (name, mine), (_, theirs) in zip(base.named_parameters(), twin.named_parameters(), strict=True):
        assert torch.equal(mine.to(torch.bfloat16), theirs), name


def test_a_frozen_twin_keeps_tied_embeddings_tied(base):
    twin = frozen_twin(copy.deepcopy(base))
    assert twin.get_output_embeddings().weight is twin.get_input_embeddings().weight
    assert isinstance(twin.get_output_embeddings().weight, nn.Parameter)


def test_the_reference_of_a_student_with_frozen_layers_stays_where_it_began(base, specialists):
    student = copy.deepcopy(base)
    student.model.embed_tokens.requires_grad_(False)
    pool = pool_of(student, {"math": specialists["math"]})
    with torch.no_grad():
        for parameter in student.parameters():
            if parameter.requires_grad:
                parameter += 1.0
    assert_answers(pool, {"math": specialists["math"], REFERENCE: base})


def test_a_teacher_that_is_the_student_itself_is_the_student_as_it_began(base):
    student = copy.deepcopy(base)
    pool = pool_of(student, {"math": student}, with_reference=False)
    assert all(parameter.requires_grad for parameter in student.parameters())
    with torch.no_grad():
        for parameter in student.parameters():
            parameter += 1.0
    assert_answers(pool, {"math": base})


def test_what_the_pool_loads_or_copies_is_frozen_and_everything_in_evaluation_mode(base, specialists, checkpoints):
    student = copy.deepcopy(base).train()
    given = copy.deepcopy(specialists["code"]).train()
    pool = pool_of(student, {"math": checkpoints["math"], "code": given})
    for name, member in pool.members.items():
        assert not member.host.model.training
        if name != "code":  # a loaded model stays the caller's, and is asked without gradients
            assert not any(parameter.requires_grad for parameter in member.host.model.parameters())
    assert all(parameter.requires_grad for parameter in given.parameters())
    assert student.training and all(parameter.requires_grad for parameter in student.parameters())


def test_paths_are_loaded_in_the_dtype_asked_for(base, checkpoints):
    teachers = {"math": checkpoints["math"], "code": Teacher(model=checkpoints["code"], dtype="float64")}
    pool = pool_of(copy.deepcopy(base), teachers, with_reference=False)
    assert pool.members["math"].head.weight.dtype == torch.float32
    assert pool.members["code"].head.weight.dtype == torch.float64


def test_a_pool_in_mixed_precision_computes_under_autocast(base, specialists):
    ids, mask, response = rollouts([(3, 5)])
    student = copy.deepcopy(base)
    graph = resolve({"math": specialists["math"]}, None, student, with_reference=False)
    pool = build_pool(graph, student, device=CPU, dtype=torch.float32, autocast_dtype=torch.bfloat16)
    candidates = CANDIDATES.repeat(5, 1)
    found = pool.ask(Rollouts(ids, mask, response, 1))["math"].logits_at([0], candidates)
    with torch.no_grad():
        exact = specialists["math"].model(input_ids=ids, use_cache=False).last_hidden_state[0, 2:7]
        with torch.autocast("cpu", torch.bfloat16):
            mixed = specialists["math"].model(input_ids=ids, use_cache=False).last_hidden_state[0, 2:7]
    head = pool.members["math"].head
    assert torch.equal(found, head.logits_of(mixed, candidates).float())
    assert not torch.equal(found, head.logits_of(exact, candidates).float())


def test_weights_that_lack_a_layer_are_refused_when_they_are_loaded(base, checkpoints, tmp_path):
    """On the Hub no file is seen before, and a freshly initialised layer would teach noise."""
    with pytest.raises(ValueError, match=r"teacher 'math'.*down_proj"):
        pool_of(base, {"math": str(tiny.incomplete(checkpoints["math"], tmp_path / "lacking"))})
