"""Checks before any GPU hour is spent: same tokens, same template, same end, whole files.

Prompts are rendered once, with the student's template, and every model is asked about the student's own token ids. A
model that reads those ids differently gives confident nonsense, not an error; so it is refused here.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from peft import PeftConfig
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from trustmopd.files import meant_here
from trustmopd.method.candidates import check_candidate_count
from trustmopd.teachers.distinct import check_distinct
from trustmopd.teachers.skeleton import check_adapter_fits, check_trained_on, local_adapter
from trustmopd.teachers.spec import Teacher

_PROBE = "def f(x): return x ** 2  # Ünïcode 東京 ½, \\boxed{42}\n\n- item\tend"


@dataclass(frozen=True)
class ModelFacts:
    """What preflight compares; `positions` is None where a model has no limit, `tokenizer` where a checkpoint ships
    none."""

    role: str
    source: str
    vocab_rows: int
    positions: int | None
    eos_ids: frozenset[int]
    tokenizer: PreTrainedTokenizerBase | None


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
        config, generation, source = model.config, model.generation_config, getattr(model.config, "_name_or_path", "")
        where = source if source and Path(source).is_dir() else None
    else:
        source = where = str(model)
        check_files(role, source)
        _check_is_model(role, source)
        options = {"revision": revision, "trust_remote_code": trust_remote_code}
        try:
            config = AutoConfig.from_pretrained(source, **options)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{role}: {_absent(source)}cannot read the configuration of {source!r} ({_first_line(error)}). Check "
                "the path or Hub id, the revision, and that you are logged in if the repository is gated."
            ) from error
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
    return ModelFacts(role, str(source), text_config.vocab_size, _positions(text_config), frozenset(eos_ids), tokenizer)


def _positions(config: Any) -> int | None:
    """How many tokens a model was made for, stretched ones included: `factor` times as many as the original. Some with
    linear stretching state the original as their limit, others the stretched one: the larger reading is taken."""
    limit = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    original = rope.get("original_max_position_embeddings") or (
        limit if rope.get("rope_type") in ("dynamic", "linear") else None
    )
    return max(limit, int(original * rope.get("factor", 1))) if limit and original else limit


def load_tokenizer(
    source: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The student's tokenizer, which renders the prompts for everyone."""
    check_files("the student", source)
    _check_is_model("the student", source)
    try:
        return AutoTokenizer.from_pretrained(
            source,
            revision=revision,
            padding_side="left",
            truncation_side="left",
            trust_remote_code=trust_remote_code,
        )
    except (OSError, ValueError) as error:
        raise ValueError(
            f"the student: {_absent(source)}cannot load the tokenizer of {source!r} ({_first_line(error)}). Check the "
            "path or Hub id; save a tokenizer beside the checkpoint, or pass one as processing_class."
        ) from error


def preflight(
    student: str | Path | PreTrainedModel,
    teachers: Mapping[str, Teacher],
    reference: Teacher | None,
    tokenizer: PreTrainedTokenizerBase,
    *,
    num_candidates: int,
    longest: int = 0,
    scores_reference: bool = True,
    allow_template_mismatch: bool = False,
    trust_remote_code: bool = False,
) -> int:
    """Check every model of a run against the student and its tokenizer, and against `longest`, the tokens of the
    longest sequence; return the number of vocabulary rows all models have."""
    read = partial(facts_of, trust_remote_code=trust_remote_code)
    facts = read("the student", student, tokenizer=tokenizer)
    base = reference or Teacher(model=student)
    assert base.model is not None
    shared = facts if reference is None else read("the reference", base.model, revision=base.revision)
    others = [] if reference is None else [shared]
    for name, teacher in teachers.items():
        role = f"teacher '{name}'"
        under = shared if teacher.model is None else read(role, teacher.model, revision=teacher.revision)
        if teacher.model is not None:
            others.append(under)
        if teacher.adapter is not None:
            others.append(_facts_of_adapter(role, teacher, teacher.model or base.model, under, trust_remote_code))
    vocab_size = check_pool(
        facts, others, num_candidates=num_candidates, allow_template_mismatch=allow_template_mismatch
    )
    for each in (facts, *others):
        if each.positions is not None and longest > each.positions:
            raise ValueError(
                f"{each.role} ({each.source}) has {each.positions} positions, but the longest prompt and "
                f"max_completion_length make {longest} tokens: beyond its positions a model fails, or writes nonsense "
                "unnoticed. Lower max_completion_length or max_prompt_length."
            )
    check_distinct(teachers, base, scores_reference=scores_reference)
    return vocab_size


def _facts_of_adapter(
    role: str, teacher: Teacher, base: str | Path | PreTrainedModel, under: ModelFacts, trust_remote_code: bool
) -> ModelFacts:
    """An adapter has its base's vocabulary; it may bring a tokenizer, and so a chat template, of its own."""
    adapter, revision = str(teacher.adapter), teacher.revision
    check_files(role, adapter)
    try:
        trained_on = PeftConfig.from_pretrained(adapter, revision=revision).base_model_name_or_path
        folder = local_adapter(adapter, revision)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{role}: {_absent(adapter)}cannot read {adapter!r} as a PEFT adapter ({_first_line(error)}). Check the "
            "path; a full checkpoint is given as `model`."
        ) from error
    check_adapter_fits(role, folder, base, trust_remote_code=trust_remote_code)
    check_trained_on(role, adapter, trained_on, under.source)
    own = folder / "tokenizer_config.json"
    tokenizer = AutoTokenizer.from_pretrained(folder) if own.is_file() else None
    return replace(under, role=role, source=adapter, tokenizer=tokenizer)


def check_pool(
    student: ModelFacts, others: Sequence[ModelFacts], *, num_candidates: int, allow_template_mismatch: bool = False
) -> int:
    """Raise on the first difference that would corrupt the comparison; return the number of vocabulary rows all
    models have."""
    assert student.tokenizer is not None
    needed = max(student.tokenizer.get_vocab().values()) + 1
    for other in (student, *others):
        if other.vocab_rows < needed:
            raise ValueError(
                f"{other.role} ({other.source}) has {other.vocab_rows} vocabulary rows, the student's tokenizer has "
                f"{needed} tokens: it cannot say anything about the rest. Use specialists grown from the student's "
                "own base model."
            )
    for other in others:
        if other.tokenizer is not None and other.tokenizer is not student.tokenizer:
            _check_tokenizer(student, other, allow_template_mismatch)
        _check_end(student, other, allow_template_mismatch)
    # Rows behind the tokenizer's last token are padding: candidates only where C asks for more than there are tokens.
    shared = min(facts.vocab_rows for facts in (student, *others))
    vocab_size = needed if num_candidates <= needed else shared
    check_candidate_count(num_candidates, vocab_size)
    return vocab_size


def _check_tokenizer(student: ModelFacts, other: ModelFacts, allow_template_mismatch: bool) -> None:
    ours, theirs = student.tokenizer, other.tokenizer
    assert ours is not None and theirs is not None
    our_vocab, their_vocab = ours.get_vocab(), theirs.get_vocab()
    if our_vocab != their_vocab:
        token = min(
            (
                token
                for token in our_vocab.keys() | their_vocab.keys()
                if our_vocab.get(token) != their_vocab.get(token)
            ),
            key=lambda token: (our_vocab.get(token, their_vocab.get(token, 0)), token),
        )
        raise ValueError(
            f"{other.role} ({other.source}) has another vocabulary than the student ({student.source}): token "
            f"{token!r} is id {their_vocab.get(token)} there and {our_vocab.get(token)} here. Distributions over "
            "different tokens cannot be mixed. Use specialists grown from the student's own base model."
        )
    our_ids, their_ids = (tok(_PROBE, add_special_tokens=False)["input_ids"] for tok in (ours, theirs))
    if our_ids != their_ids:
        raise ValueError(
            f"{other.role} ({other.source}) splits text differently from the student ({student.source}): "
            f"{_first_split(ours, our_ids, their_ids)}. It was trained on other token sequences. Use specialists of "
            "the same base model."
        )
    our_template, their_template = (getattr(tok, "chat_template", None) for tok in (ours, theirs))
    if our_template != their_template:
        _mismatch(
            f"{other.role} ({other.source}) has another chat template than the student ({student.source}): "
            f"{_difference(their_template, our_template)}; it would see prompts in a form it was not trained on",
            allow_template_mismatch,
        )


def _check_end(student: ModelFacts, other: ModelFacts, allow_template_mismatch: bool) -> None:
    # A model without a tokenizer of its own is read with the student's.
    assert student.tokenizer is not None
    ends = other.eos_ids if other.tokenizer is not None else other.eos_ids | {student.tokenizer.eos_token_id}
    if student.eos_ids != ends:
        _mismatch(
            f"{other.role} ({other.source}) ends a response with token ids {sorted(ends)}, the student "
            f"({student.source}) with {sorted(student.eos_ids)}: a response may never end, or end for one model only",
            allow_template_mismatch,
        )


def _mismatch(difference: str, allowed: bool) -> None:
    remedy = (
        "Give the checkpoints one template and EOS, or set allow_template_mismatch=True if that is harmless here (in a "
        "recipe: training.allow_template_mismatch=true)."
    )
    if not allowed:
        raise ValueError(f"{difference}. {remedy}")
    warnings.warn(f"{difference}. Allowed by allow_template_mismatch.", stacklevel=3)


def check_files(role: str, source: str) -> None:
    """Every safetensors file of a local checkpoint is whole, and every shard that its index names is there."""
    folder = Path(source)
    if not folder.exists() and meant_here(source):
        raise ValueError(f"{role}: {source} does not exist. Check the path; the id of a Hub model is written org/name.")
    if not folder.is_dir():
        return
    weights = [file.name for file in folder.iterdir() if file.suffix in (".safetensors", ".bin", ".gguf")]
    if weights in ([], ["training_args.bin"]):  # which the trainer of transformers leaves beside them
        raise ValueError(f"{role}: {source} holds no weights (*.safetensors). Check the path, or save the model there.")
    for index in folder.glob("*.safetensors.index.json"):
        try:
            shards = set(json.loads(index.read_text())["weight_map"].values())
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(
                f"{role}: {index} is not whole ({_first_line(error)}). Download or save it again."
            ) from error
        if missing := sorted(shard for shard in shards if not (folder / shard).is_file()):
            raise ValueError(
                f"{role}: {source} lacks {', '.join(missing)}, named by {index.name}. Download or save it again."
            )
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ValueError(
                f"{role}: {file} ({file.stat().st_size} bytes) is not a whole checkpoint file ({_first_line(error)}): "
                "it was cut short. Download or save it again."
            ) from error


def _check_is_model(role: str, source: str) -> None:
    if (Path(source) / "adapter_config.json").is_file() and not (Path(source) / "config.json").is_file():
        remedy = f"Make full weights of it first: trustmopd merge {source} --out FOLDER."
        if role.startswith("teacher"):
            remedy = f"Give it as Teacher(adapter={source!r}), in a recipe as {{adapter: {source}}}."
        raise ValueError(f"{role}: {source!r} is a LoRA adapter, not a model. {remedy}")


def _absent(source: str) -> str:
    return "" if Path(source).exists() else "there is no such folder here, and it could not be read from the Hub: "


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]


def _first_split(tokenizer: PreTrainedTokenizerBase, ours: list[int], theirs: list[int], around: int = 4) -> str:
    """The text before the first difference, and the tokens of both there; the vocabulary is the same."""
    place = _agreeing(theirs, ours)
    before = tokenizer.decode(ours[max(0, place - 8) : place])
    tokens = [tokenizer.convert_ids_to_tokens(ids[place : place + around]) for ids in (theirs, ours)]
    return f"after {before!r} come {tokens[0]} there and {tokens[1]} here (token {place} of a probe)"


def _agreeing(one: Sequence, other: Sequence) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _difference(theirs: str | None, ours: str | None, around: int = 30) -> str:
    """Both templates where they part: most begin alike."""
    if not isinstance(theirs, str) or not isinstance(ours, str):
        return " against ".join("none" if template is None else "one" for template in (theirs, ours))
    place = _agreeing(theirs, ours)
    start = max(0, place - around)
    parts = [f"{'…' if start else ''}{text[start : place + around]}" for text in (theirs, ours)]
    return f"{parts[0]!r} against {parts[1]!r} at character {place}"
