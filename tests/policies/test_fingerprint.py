"""Equal fingerprints, equal policies."""

import copy
import json
import shutil

import pytest
import tiny
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM

from trustmopd.policies import Teacher, build_pool, fingerprint, fingerprint_tokenizer, resolve
from trustmopd.policies.fingerprint import fingerprint_tensors

pytestmark = pytest.mark.unit

LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_changed_bit_anywhere_changes_it(base, dtype):
    model = copy.deepcopy(base).to(dtype)
    before = fingerprint(model)
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    for parameter in model.parameters():
        words = parameter.data.view(-1).view(bits)
        for position in (0, len(words) // 2, len(words) - 1):
            words[position] ^= 1
            assert fingerprint(model) != before
            words[position] ^= 1
    assert fingerprint(model) == before


def test_a_changed_sign_of_zero_or_of_a_large_weight_changes_it():
    for value in (0.0, 1e30):
        weights = torch.full((3, 5), value)
        other = weights.clone()
        other[1, 2] = -value
        assert fingerprint_tensors([("w", weights)]) != fingerprint_tensors([("w", other)])


def test_the_order_of_values_in_a_tensor_matters():
    rows = torch.arange(12.0).view(3, 4)
    assert fingerprint_tensors([("w", rows)]) != fingerprint_tensors([("w", rows.flip(0))])
    assert fingerprint_tensors([("w", rows)]) != fingerprint_tensors([("w", rows.view(4, 3))])


def test_the_order_of_parameters_does_not_matter_but_their_names_do():
    first, second = torch.randn(3), torch.randn(4)
    one_way = fingerprint_tensors([("a", first), ("b", second)])
    assert fingerprint_tensors([("b", second), ("a", first)]) == one_way
    assert fingerprint_tensors([("b", first), ("a", second)]) != one_way


class Backwards(nn.Module):
    """A model whose parameters come in the opposite order."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.config = model.config

    def named_parameters(self, *args, **kwargs):
        return reversed(list(self.model.named_parameters()))


def test_a_model_that_lists_its_parameters_backwards_is_the_same_model(base):
    assert fingerprint(Backwards(base)) == fingerprint(base)


def test_it_depends_on_the_bits_and_not_on_where_or_how_they_lie(base):
    weights = torch.randn(6, 4)
    strided = weights.T.contiguous().T
    assert not strided.is_contiguous()
    assert fingerprint_tensors([("w", strided)]) == fingerprint_tensors([("w", weights)])
    assert fingerprint_tensors([("w", nn.Parameter(weights))]) == fingerprint_tensors([("w", weights)])
    assert fingerprint(copy.deepcopy(base)) == fingerprint(base)
    if torch.cuda.is_available():
        assert fingerprint(copy.deepcopy(base).to("cuda")) == fingerprint(base)


def test_it_survives_saving_and_loading(base, checkpoints):
    loaded = AutoModelForCausalLM.from_pretrained(checkpoints["base"], dtype=torch.float32)
    assert fingerprint(loaded) == fingerprint(base)


def test_a_rounded_model_is_another(base):
    assert fingerprint(copy.deepcopy(base).to(torch.bfloat16)) != fingerprint(base)


@pytest.mark.parametrize("elements", [1, 2, 3, 5, (1 << 22) + 1])
def test_tensors_of_odd_sizes_and_of_more_than_one_chunk_are_covered_to_their_end(elements):
    for dtype in (torch.bfloat16, torch.uint8, torch.float32):
        tensor = torch.zeros(elements, dtype=dtype)
        before = fingerprint_tensors([("w", tensor)])
        tensor[-1] = 1
        assert fingerprint_tensors([("w", tensor)]) != before


@pytest.mark.parametrize(
    "target_modules", [["q_proj", "v_proj"], ["q_proj", "embed_tokens"]], ids=["linear layers", "and the embedding"]
)
def test_a_fresh_adapter_leaves_the_fingerprint_of_its_base(base, target_modules):
    config = LoraConfig(r=4, target_modules=target_modules, task_type="CAUSAL_LM")
    found = set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.add(fingerprint(get_peft_model(copy.deepcopy(base), config)))
    assert found == {fingerprint(base)}


def test_a_trained_adapter_changes_it(base):
    model = get_peft_model(copy.deepcopy(base), LORA)
    with torch.no_grad():
        next(parameter for name, parameter in model.named_parameters() if "lora_B" in name)[0, 0] = 1e-6
    assert fingerprint(model) != fingerprint(base)


def test_a_change_below_an_adapter_changes_it(base):
    model = get_peft_model(copy.deepcopy(base), LORA)
    with torch.no_grad():
        next(parameter for name, parameter in model.named_parameters() if "base_layer" in name)[0, 0] += 1e-3
    assert fingerprint(model) != fingerprint(base)


def test_two_trained_adapters_differ_by_their_a_alone(base, adapters):
    model = PeftModel.from_pretrained(copy.deepcopy(base), adapters["math"])
    before = fingerprint(model)
    with torch.no_grad():
        next(parameter for name, parameter in model.named_parameters() if "lora_A" in name)[0, 0] += 1e-3
    assert fingerprint(model) != before


def fingerprint_of(base, teacher):
    graph = resolve({"math": teacher}, None, base, with_reference=False)
    pool = build_pool(graph, copy.deepcopy(base), device=torch.device("cpu"), dtype=torch.float32)
    return pool.members["math"].origin.fingerprint


def test_an_adapter_is_one_policy_wherever_it_was_read_from(base, adapters, tmp_path):
    moved = shutil.copytree(adapters["math"], tmp_path / "moved")
    found = {fingerprint_of(base, Teacher(adapter=folder)) for folder in (adapters["math"], moved)}
    assert len(found) == 1
    assert fingerprint_of(base, Teacher(adapter=adapters["code"])) not in found


def test_the_strength_of_an_adapter_is_part_of_the_policy(base, adapters, tmp_path):
    """The tensors of both are equal; one is applied twice as strongly."""
    stronger = shutil.copytree(adapters["math"], tmp_path / "stronger")
    config = json.loads((stronger / "adapter_config.json").read_text())
    config["lora_alpha"] *= 2
    (stronger / "adapter_config.json").write_text(json.dumps(config))
    weak, strong = (fingerprint_of(base, Teacher(adapter=folder)) for folder in (adapters["math"], stronger))
    assert weak != strong


def test_settings_that_change_what_a_model_computes_are_part_of_the_policy(base):
    """Same weights, other positions: a long-context variant is another teacher."""
    other = copy.deepcopy(base)
    other.config.rope_parameters = {**other.config.rope_parameters, "rope_theta": 500_000.0}
    rebuilt = type(base)(other.config)
    rebuilt.load_state_dict(base.state_dict())
    assert fingerprint(rebuilt) != fingerprint(base)


def test_a_tokenizers_fingerprint_follows_vocabulary_end_and_template():
    found = [
        fingerprint_tokenizer(tokenizer)
        for tokenizer in (
            tiny.tokenizer(),
            tiny.tokenizer(template=tiny.TEMPLATE + " "),
            tiny.tokenizer(characters=tiny.CHARACTERS[::-1]),
        )
    ]
    assert len(set(found)) == 3
    assert fingerprint_tokenizer(tiny.tokenizer()) == found[0]
    other_end = tiny.tokenizer()
    other_end.eos_token = "<unk>"
    assert fingerprint_tokenizer(other_end) not in found
