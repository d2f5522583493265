"""The policies of a pool must differ: no teacher equals its reference, and none appears under two names.

If a teacher equals its reference, its scores are rounding errors; divided by its tiny mu they would look like trust.
This is checked twice: from the files before anything is loaded, and by fingerprint afterwards.
"""

import json
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig

from trustmopd.checkpoints.files import same_weights, tensors_of
from trustmopd.policies.graph import PolicyGraph, is_reference
from trustmopd.policies.teacher import REFERENCE, Teacher


def check_distinct(graph: PolicyGraph, student: Teacher) -> None:
    """Of the checkpoints that were named; no weights are loaded."""
    pairs = [*combinations(graph.teachers.values(), 2)]
    pairs += [(graph.teachers[n], other) for other in graph.scored.values() for n in graph.measured_from(other.name)]
    for one, other in pairs:
        ours, theirs = (policy.checkpoint or student for policy in (one, other))
        if one.reading == other.reading and same_model(ours, theirs) and _same_adapter(ours.adapter, theirs.adapter):
            raise _refusal(one.name, ours.source, other.name, theirs.source)


def check_fingerprints(members: Mapping[str, Any], references: Mapping[str, str], marks: Mapping[str, Any]) -> None:
    """`members` are those of a pool; `references` names the reference of each teacher that has one; equal `marks` are
    one policy."""
    origins = {name: member.origin for name, member in members.items()}
    teachers = [name for name in members if not is_reference(name)]
    for name, other in (*combinations(teachers, 2), *references.items()):
        if marks[name] == marks[other]:
            raise _refusal(name, origins[name].source, other, origins[other].source)


def adapter_settings(config: PeftConfig) -> dict[str, Any]:
    """The settings of an adapter that change the policy; not, for example, where it was read from."""
    elsewhere = ("base_model_name_or_path", "revision", "inference_mode", "peft_version", "auto_mapping")
    return {name: value for name, value in config.to_dict().items() if name not in elsewhere}


def _refusal(name: str, source: str, other: str, other_source: str) -> ValueError:
    both = source if source == other_source else f"{source} and {other_source}"
    if is_reference(other):
        which = "the reference" if other == REFERENCE else "its own reference"
        return ValueError(
            f"teacher '{name}' has the same weights as {which} ({both}), so its displacement is 0 everywhere. Check "
            f"its path, or drop it from the pool (in a recipe: teachers.{name}=null)."
        )
    return ValueError(
        f"teachers '{name}' and '{other}' are the same model ({both}), which would count twice. Check the paths, or "
        f"drop one of them (in a recipe: teachers.{other}=null)."
    )


def same_model(ours: Teacher, theirs: Teacher) -> bool:
    if not all(isinstance(each.model, (str, Path)) for each in (ours, theirs)):
        return ours.model is theirs.model
    if all(Path(str(each.model)).is_dir() for each in (ours, theirs)):
        folders = str(ours.model), str(theirs.model)
        return _rotary(folders[0]) == _rotary(folders[1]) and same_weights(*folders)
    # A revision given with an adapter may be the adapter's, so revisions are compared only without adapters.
    revisions = {each.revision for each in (ours, theirs)} if ours.adapter is theirs.adapter is None else {None}
    return str(ours.model) == str(theirs.model) and len(revisions) == 1


def _rotary(folder: str) -> dict[str, Any]:
    """The settings of position embeddings: they can make another policy of the same weights."""
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    return {name: value for name, value in config.items() if name.startswith("rope_")}


def _same_adapter(ours: str | Path | None, theirs: str | Path | None) -> bool:
    given = [str(each) for each in (ours, theirs) if each is not None]
    if not all(Path(each).is_dir() for each in given):
        return ours == theirs
    if len(given) == 1:
        return _changes_nothing(given[0])
    settings = [adapter_settings(PeftConfig.from_pretrained(each)) for each in given]
    return not given or (settings[0] == settings[1] and same_weights(*given))


def _changes_nothing(adapter: str) -> bool:
    """A LoRA adapter that was never trained: its B is still 0."""
    stored = tensors_of(adapter)
    if not stored or not all(".lora_" in name for name in stored):
        return False
    zero_at_first = {n: t for n, t in stored.items() if ".lora_B." in n or ".lora_embedding_A" in n}
    return not any(bool(torch.any(tensor.read(name))) for name, tensor in zero_at_first.items())
