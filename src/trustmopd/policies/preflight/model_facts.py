"""What preflight compares of a model, read from its configuration and tokenizer: no weights are loaded."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peft import PeftConfig
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from trustmopd.checkpoints.files import shards_of
from trustmopd.checkpoints.meta_model import check_adapter_fits, check_complete, check_trained_on, local_adapter
from trustmopd.policies.teacher import Teacher
from trustmopd.util.files import meant_here
from trustmopd.util.messages import first_line


@dataclass(frozen=True)
class ModelFacts:
    """What preflight compares. `positions` is None if a model has no limit, `tokenizer` if a checkpoint has none;
    `shape` says which architecture it has, and of what size. `own_template`: its prompts are rendered with another
    template than the student's."""

    role: str
    source: str
    vocab_rows: int
    positions: int | None
    eos_ids: frozenset[int]
    tokenizer: PreTrainedTokenizerBase | None
    shape: str
    own_template: bool = False


def facts_of(
    role: str,
    model: str | Path | PreTrainedModel,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> ModelFacts:
    """Read from the configuration and tokenizer files alone: no weights are loaded."""
    if isinstance(model, PreTrainedModel) or not isinstance(model, (str, Path)):
        _check_rotary(role, model)
        config, generation, source = model.config, model.generation_config, getattr(model.config, "_name_or_path", "")
        where = source if source and Path(source).is_dir() else None
    else:
        source = where = str(model)
        check_files(role, source)
        _check_is_model(role, source)
        options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
        remedy = "Check the path or Hub id, the revision, and that you are logged in if the repository is gated."
        with _reading(role, f"the configuration of {source!r}", source, remedy):
            config = AutoConfig.from_pretrained(source, **options)
        check_complete(role, source, **options)
        try:
            generation = GenerationConfig.from_pretrained(source, revision=revision)
        except OSError:
            generation = None
    if tokenizer is None and where is not None:
        try:
            tokenizer = AutoTokenizer.from_pretrained(where, revision=revision, trust_remote_code=trust_remote_code)
        except (OSError, ValueError):
            tokenizer = None
    text_config = config.get_text_config()
    eos = getattr(generation, "eos_token_id", None)
    eos = text_config.eos_token_id if eos is None else eos
    eos_ids = set(eos if isinstance(eos, list) else [] if eos is None else [eos])
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        eos_ids.add(tokenizer.eos_token_id)
    layers, width = (getattr(text_config, name, None) for name in ("num_hidden_layers", "hidden_size"))
    shape = f"{text_config.model_type}, {layers} layers of {width}"
    positions = positions_of(text_config)
    return ModelFacts(role, str(source), text_config.vocab_size, positions, frozenset(eos_ids), tokenizer, shape)


def positions_of(config: Any) -> int | None:
    """The most tokens a model can read, including RoPE scaling: `factor` times the original limit. With linear scaling,
    some models state the original limit and others the scaled one, so the larger value is used."""
    limit = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    original = rope.get("original_max_position_embeddings") or (
        limit if rope.get("rope_type") in ("dynamic", "linear") else None
    )
    return max(limit, int(original * rope.get("factor", 1))) if limit and original else limit


def load_tokenizer(
    source: str,
    *,
    role: str = "the student",
    revision: str | None = None,
    trust_remote_code: bool = False,
    remedy: str = "Check the path or Hub id; save a tokenizer beside the checkpoint, or pass one as processing_class.",
) -> PreTrainedTokenizerBase:
    """The student's tokenizer, which renders the prompts for all models."""
    check_files(role, source)
    _check_is_model(role, source)
    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    with _reading(role, f"the tokenizer of {source!r}", source, remedy):
        return AutoTokenizer.from_pretrained(source, padding_side="left", truncation_side="left", **options)


def facts_of_adapter(
    role: str, teacher: Teacher, base: str | Path | PreTrainedModel, under: ModelFacts, trust_remote_code: bool
) -> ModelFacts:
    """An adapter has the vocabulary of its base. It may have its own tokenizer, and so its own chat template."""
    adapter, revision = str(teacher.adapter), teacher.revision
    check_files(role, adapter)
    remedy = "Check the path. If it is a full checkpoint, give it as `model`."
    with _reading(role, f"{adapter!r} as a PEFT adapter", adapter, remedy):
        trained_on = PeftConfig.from_pretrained(adapter, revision=revision).base_model_name_or_path
        folder = local_adapter(adapter, revision)
    check_adapter_fits(role, folder, base, trust_remote_code=trust_remote_code)
    check_trained_on(role, adapter, trained_on, under.source)
    own = folder / "tokenizer_config.json"
    tokenizer = AutoTokenizer.from_pretrained(folder) if own.is_file() else None
    return replace(under, role=role, source=adapter, tokenizer=tokenizer)


def _check_rotary(role: str, model: Any) -> None:
    """`model.to(torch.bfloat16)` rounds the rotary frequencies as well. `from_pretrained` keeps them in float32."""
    for name, buffer in model.named_buffers():
        if name.endswith("inv_freq") and buffer.element_size() < 4:
            raise ValueError(
                f"{role}: {name} is {buffer.dtype}, so token positions are wrong by more the longer a response is, and "
                "the saved checkpoint would not behave like the model in memory. Casting a whole model does this. Load "
                "it with from_pretrained(…, dtype=torch.bfloat16) instead of calling .to(torch.bfloat16)."
            )


def check_files(role: str, source: str) -> None:
    """Check that the safetensors files of a local checkpoint are complete, and that no shard is missing."""
    folder = Path(source)
    if not folder.exists() and meant_here(source):
        raise ValueError(f"{role}: {source} does not exist. Check the path; the id of a Hub model is written org/name.")
    if not folder.is_dir():
        return
    weights = [file.name for file in folder.iterdir() if file.suffix in (".safetensors", ".bin", ".gguf")]
    if weights in ([], ["training_args.bin"]):  # which transformers' Trainer writes beside the weights
        raise ValueError(f"{role}: {source} has no weights (*.safetensors). Check the path, or save the model there.")
    for index in folder.glob("*.safetensors.index.json"):
        try:
            shards_of(index)
        except (ValueError, OSError) as error:
            raise ValueError(f"{role}: {error}") from error
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ValueError(
                f"{role}: {file} ({file.stat().st_size} bytes) is not complete ({first_line(error)}): it was cut "
                "short. Download or save it again."
            ) from error


def _check_is_model(role: str, source: str) -> None:
    if (Path(source) / "adapter_config.json").is_file() and not (Path(source) / "config.json").is_file():
        remedy = f"Merge it into full weights first: trustmopd merge {source} --out FOLDER."
        if role.startswith("teacher"):
            remedy = f"Give it as Teacher(adapter={source!r}), in a recipe as {{adapter: {source}}}."
        raise ValueError(f"{role}: {source!r} is a LoRA adapter, not a model. {remedy}")


@contextmanager
def _reading(role: str, what: str, source: str, remedy: str) -> Iterator[None]:
    """Errors inside become one that names the model and the remedy."""
    try:
        yield
    except (OSError, ValueError) as error:
        hub = "" if Path(source).exists() else "; there is no such folder here, and it could not be read from the Hub"
        raise ValueError(f"{role}: cannot read {what} ({first_line(error)}{hub}). {remedy}") from error
