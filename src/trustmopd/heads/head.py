"""Head: the output layer of one model, taken from any transformers causal language model."""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from trustmopd.heads.dispatch import top_of, unchecked_candidate_logits
from trustmopd.heads.shared import Projection

# Each family has its own names for the scale and the cap of its logits. MiniCPM3 and Inkling scale the hidden states
# before a head without bias, which is the same.
MULTIPLIERS = ("logit_scale", "output_multiplier", "lm_head_multiplier")  # Cohere, Muse, Falcon-H1
DIVISORS = ("logits_scaling", "logits_mup_width_multiplier")  # Granite and MiniCPM3, Inkling
SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")  # Gemma, RecurrentGemma, xLSTM
# HyperCLOVA X multiplies by what Granite divides by; MPT's config has a scale that its model never applies.
MULTIPLIES_INSTEAD = {("hyperclovax", "logits_scaling")}
NOT_APPLIED = {("mpt", "logit_scale")}


class Head(Projection):
    """Everything between a model's last hidden states and its logits. Hidden states are those after the final norm."""

    @classmethod
    def of(cls, model: Any) -> "Head":
        """The head of a transformers causal model, which shares its parameters. Sharded ones (FSDP2) are gathered into
        a copy, so such a head must be made again at every step."""
        layer = model.get_output_embeddings()
        _check_plain_linear(layer, type(model).__name__)
        config = model.config.get_text_config()
        bias = None if layer.bias is None else _whole(layer.bias)
        softcap = next((cap for name in SOFTCAPS if (cap := getattr(config, name, None)) is not None), None)
        return cls(_whole(layer.weight), bias, _logit_scale(config), softcap)

    def logits_of(self, hidden: Float[Tensor, "N H"], ids: Int[Tensor, "N C"]) -> Float[Tensor, "N C"]:
        """`ids` come from `top` of a head with the same vocabulary. They are not checked: on a GPU, an id beyond the
        head's rows would read unrelated memory."""
        return unchecked_candidate_logits(hidden, self, ids)

    def top(
        self, hidden: Float[Tensor, "N H"], num_candidates: int, vocab_size: int | None = None
    ) -> tuple[Int[Tensor, "N C"], Float[Tensor, " N"]]:
        return top_of(hidden, self, num_candidates, vocab_size)


def _check_plain_linear(layer: nn.Module | None, model_name: str) -> None:
    # PEFT's wrappers also have a `.weight`, that of the base layer: taking it would silently leave out the adapter.
    if not isinstance(layer, nn.Linear):
        raise ValueError(
            f"the head of {model_name} is a {type(layer).__module__}.{type(layer).__name__}, not a torch.nn.Linear: "
            "candidate logits are products with the rows of one weight matrix. Merge an adapter on lm_head into a full "
            "checkpoint first (PEFT: model.merge_and_unload()), or leave lm_head out of the adapter."
        )
    if layer.weight.ndim != 2 or not layer.weight.is_floating_point():
        raise ValueError(
            f"the head of {model_name} keeps its weight as {layer.weight.dtype} {tuple(layer.weight.shape)}, which "
            "cannot be multiplied by hidden states. Load the model with lm_head unquantized, for example in "
            "torch.bfloat16."
        )


def _whole(parameter: Tensor) -> Tensor:
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def _logit_scale(config: Any) -> float:
    scale = 1.0
    for name in MULTIPLIERS + DIVISORS:
        value, key = getattr(config, name, None), (config.model_type, name)
        if value is None or key in NOT_APPLIED:
            continue
        scale = scale * value if name in MULTIPLIERS or key in MULTIPLIES_INSTEAD else scale / value
    return scale
