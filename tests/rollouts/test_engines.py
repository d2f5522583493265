"""What every engine promises, on transformers' own."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from pydantic import ValidationError
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from trustmopd.recipe import Recipe
from trustmopd.rollouts import Params, engine_module, reason
from trustmopd.rollouts.cpu_sampling import faster_on_cpu, grouped_attention
from trustmopd.rollouts.weights import StaleWeights, check_equal, kept_as_they_are, merged, trained_names

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save(tiny.model(0), tmp_path_factory.mktemp("model") / "student")


def test_log_probs_are_of_the_sampled_tokens_at_temperature_1(checkpoint: str) -> None:
    engine = engine_module("transformers").load([(checkpoint, None)], None, batch_size=4)
    prompts = [tiny.tokenizer()(text)["input_ids"] for text in ("hi", "a longer prompt")]
    params = Params(max_new_tokens=8, temperature=0.6, top_p=0.9, draws=["a", "b"], logprobs=True)
    made = engine.sample(prompts, params)
    assert made == engine.sample(prompts, params)
    assert [each.ids for each in made] != [
        each.ids for each in engine.sample(prompts, replace(params, draws=["c", "d"]))
    ]
    for prompt, each in zip(prompts, made, strict=True):
        with torch.no_grad():
            logits = engine.model(torch.tensor([prompt + each.ids])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(each.ids)[:, None])[:, 0]
        assert each.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
        assert each.truncated == (each.ids[-1] != 2)


def test_on_a_cpu_the_head_gets_whole_rows_of_every_prompt(checkpoint: str) -> None:
    engine = engine_module("transformers").load([(checkpoint, None)], None, batch_size=4)
    head, given = engine.model.get_output_embeddings(), []
    noted = head.register_forward_hook(lambda _, hidden, __: given.append(hidden[0]))
    engine.sample([[3, 4, 5], [6, 7]], Params(max_new_tokens=3, temperature=0))
    assert len(given[0]) == 2 and all(hidden.is_contiguous() for hidden in given)
    noted.remove()
    assert not head._forward_pre_hooks  # nothing stays on a model that was lent


@pytest.mark.parametrize(("dtype", "apart"), [("float32", 1e-4), ("bfloat16", 0.1)])
def test_on_a_cpu_log_probs_are_those_of_a_plain_forward(checkpoint: str, dtype: str, apart: float) -> None:
    engine = engine_module("transformers").load([(checkpoint, None)], dtype, batch_size=4)
    prompts = [[3, 4, 5, 6, 7], [8, 9]]
    made = engine.sample(prompts, Params(max_new_tokens=8, temperature=1.0, draws=["a", "b"], logprobs=True))
    for prompt, each in zip(prompts, made, strict=True):
        with torch.no_grad():
            logits = engine.model.float()(torch.tensor([prompt + each.ids])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(each.ids)[:, None])[:, 0]
        assert each.logprobs == pytest.approx(expected.tolist(), abs=apart)


def test_what_is_replaced_on_a_cpu_is_back_after_an_error_and_after_an_inner_block() -> None:
    model, before = tiny.model(0), ALL_ATTENTION_FUNCTIONS["sdpa"]
    with pytest.raises(KeyError), faster_on_cpu(model):
        with faster_on_cpu(model):
            assert ALL_ATTENTION_FUNCTIONS["sdpa"] is grouped_attention
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is grouped_attention
        raise KeyError
    first, second = faster_on_cpu(model), faster_on_cpu(model)  # as two threads do
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before
    assert not model.get_output_embeddings()._forward_pre_hooks


def test_an_attention_of_the_users_own_stays_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(*_: Any, **__: Any) -> None: ...

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", mine)
    with faster_on_cpu(tiny.model(0)):
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is mine
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is mine


@pytest.mark.parametrize(("heads", "groups", "scaling"), [(9, 3, 0.2), (4, 4, None), (6, 1, None)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("common", [0, 20])  # of all keys: scores that are large and near each other
def test_grouped_attention_is_attention(
    heads: int, groups: int, scaling: float | None, masked: bool, common: float
) -> None:
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(3, size, length, 8, dtype=torch.bfloat16) for size, length in ((heads, 1), (groups, 7), (groups, 7))
    )
    key[..., 0] += common
    query[..., 0] += common
    mask = (torch.arange(7) >= torch.tensor([[0], [3], [6]])).view(3, 1, 1, 7) if masked else None
    found, _ = grouped_attention(torch.nn.Identity(), query, key, value, mask, scaling=scaling)
    for row in range(3):
        for head in range(heads):
            keys, values = (each[row, head // (heads // groups)].double() for each in (key, value))
            scores = keys @ query[row, head, 0].double() * (8**-0.5 if scaling is None else scaling)
            if mask is not None:
                scores[~mask[row, 0, 0]] = -torch.inf
            assert torch.allclose(found[row, 0, head].double(), scores.softmax(0) @ values, atol=2e-2)


def test_a_row_that_is_all_padding_has_no_nan() -> None:
    given = (torch.ones(1, 2, tokens, 8, dtype=torch.bfloat16) for tokens in (1, 3, 3))
    found, _ = grouped_attention(torch.nn.Identity(), *given, torch.zeros(1, 1, 1, 3, dtype=torch.bool))
    assert found.isfinite().all()


@pytest.mark.parametrize("what", ["a mask for each head", "a float mask", "several tokens", "float32", "a bias"])
def test_other_attention_is_torchs(what: str) -> None:
    """To the bit: the fused kernel and the products round differently."""
    torch.manual_seed(0)
    dtype, tokens = torch.float32 if what == "float32" else torch.bfloat16, 3 if what == "several tokens" else 1
    query, key, value = (torch.randn(2, *shape, 64, dtype=dtype) for shape in ((4, tokens), (2, 90), (2, 90)))
    masks = {"a mask for each head": torch.rand(2, 4, 1, 90) > 0.5, "a float mask": torch.randn(2, 1, 1, 90).to(dtype)}
    bias = {"position_bias": torch.randn(1, 4, 1, 90, dtype=dtype)} if what == "a bias" else {}
    module = torch.nn.Module()
    module.num_key_value_groups = 2
    given = (module, query, key, value, masks.get(what))
    assert torch.equal(grouped_attention(*given, **bias)[0], sdpa_attention_forward(*given, **bias)[0])


def test_one_changed_bit_of_a_tensor_is_seen() -> None:
    student, engine = tiny.model(0, tied=False), tiny.model(0, tied=False).requires_grad_(False)
    padded = torch.zeros(tiny.VOCAB + 5, 32)
    padded[: tiny.VOCAB] = engine.model.embed_tokens.weight
    engine.model.embed_tokens.weight = torch.nn.Parameter(padded, requires_grad=False)
    engine.model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)
    kept = kept_as_they_are(engine, {name: tensor.shape for name, tensor in student.named_parameters()})
    assert "model.embed_tokens.weight" in kept and "model.layers.0.mlp.up_proj.weight" not in kept
    check_equal(kept, student.named_parameters())
    weight = engine.model.norm.weight
    weight[3] = torch.nextafter(weight[3], torch.tensor(9.0))
    with pytest.raises(StaleWeights, match=r"1 of \d+ .*model.norm.weight"):
        check_equal(kept, student.named_parameters())


def test_the_tensors_that_an_adapter_changes_are_those_it_is_merged_into(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(target_modules=["o_proj"], modules_to_save=["model.norm"], task_type="CAUSAL_LM")
    layers = {f"model.layers.{layer}.self_attn.o_proj.weight" for layer in range(2)}
    assert trained_names(get_peft_model(tiny.model(0), lora)) == {*layers, "model.norm.weight"}
    whole = tiny.model(0)
    assert trained_names(whole) == {name for name, _ in whole.named_parameters()}


def test_every_problem_that_pydantic_found_is_told() -> None:
    with pytest.raises(ValidationError) as found:
        Recipe.model_validate({"teachers": {}})
    assert len(found.value.errors()) > 1
    assert all(each["msg"] in reason(found.value) for each in found.value.errors())


def test_an_adapter_is_merged_as_peft_merges_it_and_the_base_is_left_alone(tmp_path: Path) -> None:
    from peft import PeftModel

    base = tiny.model(0)
    adapted = PeftModel.from_pretrained(base, tiny.adapter(tiny.model(0), tmp_path / "adapter", 3))
    before = {name: tensor.clone() for name, tensor in adapted.named_parameters()}
    found = dict(merged(adapted))
    assert all(torch.equal(tensor, before[name]) for name, tensor in adapted.named_parameters())
    expected = dict(adapted.merge_and_unload().named_parameters())
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-6)


def test_names_are_read_without_torch() -> None:
    program = "import sys; from trustmopd.recipe.names import check_engine_name as check; check('vllm'); "
    program += "print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stdout.strip() == "False"
