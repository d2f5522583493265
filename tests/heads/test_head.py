"""Head.of: the output layers of real architectures, with their own names for scales and soft caps."""

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch import nn

from trustmopd.heads import Head

pytestmark = pytest.mark.unit

SMALL = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,  # logits of several units, so that caps and scales show
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MAMBA = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 8}
MINICPM = {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 8}
FAMILIES = {
    "llama_tied": ("Llama", {"tie_word_embeddings": True}, (1.0, None)),
    "llama_untied": ("Llama", {"tie_word_embeddings": False}, (1.0, None)),
    "gemma2": ("Gemma2", {"final_logit_softcapping": 3.0}, (1.0, 3.0)),
    "gemma2_without_cap": ("Gemma2", {"final_logit_softcapping": None}, (1.0, None)),
    "cohere": ("Cohere", {"logit_scale": 0.25}, (0.25, None)),
    "granite": ("Granite", {"logits_scaling": 4.0}, (0.25, None)),
    "hyperclovax": ("HyperCLOVAX", {"logits_scaling": 4.0}, (4.0, None)),
    "minicpm3": ("MiniCPM3", {"dim_model_base": 8, **MINICPM}, (0.25, None)),
    "falcon_h1": ("FalconH1", {"lm_head_multiplier": 0.5, **MAMBA}, (0.5, None)),
    "recurrent_gemma": ("RecurrentGemma", {"logits_soft_cap": 3.0, "lru_width": 32}, (1.0, 3.0)),
    "phi_with_bias": ("Phi", {}, (1.0, None)),
    "mpt_ignores_its_scale": ("Mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2, "logit_scale": 0.25}, (1.0, None)),
}


def model_of(family: str) -> transformers.PreTrainedModel:
    name, options, _ = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **options})
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    if (bias := model.get_output_embeddings().bias) is not None:
        nn.init.normal_(bias)
    return model


def llama() -> transformers.PreTrainedModel:
    return model_of("llama_untied")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_reproduces_the_models_own_logits(family):
    model = model_of(family)
    tokens = torch.randint(3, 99, (2, 7), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        output = model(tokens, output_hidden_states=True, use_cache=False)
        hidden, logits = output.hidden_states[-1].flatten(0, 1), output.logits.flatten(0, 1)
        head = Head.of(model)
        ids, logsumexp = head.top(hidden, 9)
        candidates = head.logits_of(hidden, ids)
    assert (head.logit_scale, head.softcap) == FAMILIES[family][2]
    # Scales and caps are told apart only by logits that are neither tiny nor equal.
    assert logits.std() > 0.2
    torch.testing.assert_close(candidates, logits.gather(-1, ids), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(candidates, logits.topk(9).values, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logsumexp, torch.logsumexp(logits, dim=-1), rtol=1e-5, atol=1e-5)


def test_the_head_shares_the_models_parameters_so_gradients_reach_them():
    model = llama()
    tokens = torch.randint(3, 99, (1, 5), generator=torch.Generator().manual_seed(1))
    ids = torch.arange(4).expand(5, -1)
    model(tokens).logits[0].gather(-1, ids).square().mean().backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    head = Head.of(model)
    head.logits_of(model.model(tokens).last_hidden_state[0], ids).square().mean().backward()
    assert head.weight is model.lm_head.weight
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=5e-5, msg=name)


def test_padded_rows_of_a_resized_model_are_left_out_on_request():
    model = llama()
    hidden = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    expected = Head.of(model).top(hidden, 5)
    model.resize_token_embeddings(128, mean_resizing=False)
    nn.init.constant_(model.lm_head.weight[99:].detach(), 7.0)
    torch.testing.assert_close(Head.of(model).top(hidden, 5, vocab_size=99), expected)


def test_an_adapter_beside_the_head_leaves_it_readable():
    model = llama()
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    assert Head.of(adapted).weight is model.lm_head.weight


@pytest.mark.parametrize("options", [{"target_modules": ["lm_head"]}, {"modules_to_save": ["lm_head"]}], ids=str)
def test_an_adapter_on_the_head_is_refused_until_it_is_merged(options):
    adapted = get_peft_model(
        llama(), LoraConfig(r=2, task_type="CAUSAL_LM", **{"target_modules": ["q_proj"], **options})
    )
    with pytest.raises(ValueError, match=r"peft\..*torch.nn.Linear.*merge_and_unload"):
        Head.of(adapted)
    assert Head.of(adapted.merge_and_unload()).weight.shape == (99, 32)


def test_a_model_without_an_output_head_is_refused():
    with pytest.raises(ValueError, match="LlamaModel.*NoneType"):
        Head.of(llama().model)


def test_a_quantized_head_is_refused_with_its_type():
    model = llama()
    model.lm_head.weight = nn.Parameter(torch.zeros(99, 32, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(ValueError, match=r"torch.uint8 \(99, 32\).*unquantized"):
        Head.of(model)


def test_a_sharded_weight_is_gathered_once_and_its_gradient_flows_back(tmp_path):
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        model = llama()
        hidden, ids = torch.ones(1, 32), torch.tensor([[3, 4]])
        expected = Head.of(model).logits_of(hidden, ids)
        model.lm_head.weight = nn.Parameter(distribute_tensor(model.lm_head.weight.detach(), mesh, [Shard(0)]))
        logits = Head.of(model).logits_of(hidden, ids)
        logits.sum().backward()
        torch.testing.assert_close(logits, expected)
        assert model.lm_head.weight.grad.full_tensor().nonzero()[:, 0].unique().tolist() == [3, 4]
    finally:
        torch.distributed.destroy_process_group()
