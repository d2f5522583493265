"""Make a small world: the reference, three specialists, their scores and their card. Resumable, stage by stage."""

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from studies.small_world.machine import made_by
from studies.small_world.models import SHIPPED_SIZE, Size
from studies.small_world.reinforcement import REGIMES, Reinforcement, build_specialist
from studies.small_world.supervised import SHIPPED_SUPERVISION, Supervision, build_reference
from studies.small_world.world_card import describe
from studies.small_world.worlds import checkpoint
from trustmopd.evaluation.of_recipe import evaluate as evaluated
from trustmopd.quickstart.benchmarks import BENCHMARKS
from trustmopd.quickstart.experiment import EVALUATION_BATCH, reproducibly
from trustmopd.quickstart.prompts import MAX_NEW_TOKENS
from trustmopd.quickstart.shipped import MODELS
from trustmopd.quickstart.tasks import DOMAINS
from trustmopd.runs.layout import CARD
from trustmopd.util.files import check_writable, file_sha256, read_json, write_json, write_text

EVALUATION_TEMPERATURE = 0.6


def build_world(
    out: Path,
    seed: int = 0,
    *,
    device: str | None = None,
    size: Size = SHIPPED_SIZE,
    supervision: Supervision = SHIPPED_SUPERVISION,
    reinforcement: Reinforcement = REGIMES["moderate"],
    evaluation_prompts: int = 2000,
    reference_of: Path | None = None,
) -> dict[str, Any]:
    """All stages into `out`, and the card. A stage whose files have the digests of the card is not made again.

    `reference_of` is a world that was built with the same size and supervision: its reference is copied, with its
    record, and only the specialists are trained, from `seed`.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    settings: dict[str, Any] = {
        "seed": seed,
        "size": asdict(size),
        "supervision": asdict(supervision),
        "reinforcement": asdict(reinforcement),
        "evaluation": {"prompts": evaluation_prompts, "temperature": EVALUATION_TEMPERATURE},
    }
    card = _open_card(out, settings)
    if reference_of is not None and "reference" not in card["stages"]:
        _adopt_reference(card, out, reference_of)
    with reproducibly():
        reference = out / "reference"
        _stage(card, out, "reference", partial(build_reference, reference, seed, supervision, size, device=device))
        for domain in DOMAINS:
            make = partial(build_specialist, domain, reference, out / domain, seed, reinforcement, device=device)
            _stage(card, out, domain, make, made_from="reference")
        weights = {name: _weights(card, name) for name in MODELS}
        if card.get("evaluated") != weights:
            began = time.perf_counter()
            card |= evaluate(out, evaluation_prompts)
            card |= {"evaluated": weights, "evaluation_seconds": round(time.perf_counter() - began, 1)}
    write_json(out / CARD, card)
    write_text(out / "README.md", describe(card))
    return card


def evaluate(world: Path, prompts: int) -> dict[str, Any]:
    """model → kind of prompt → share of right answers, on the evaluation splits; and `understood`: of answers that are
    right or wrong only by systematic mistakes."""
    names = [benchmark.name for benchmark in BENCHMARKS]
    sampling = {"temperature": EVALUATION_TEMPERATURE, "max_new_tokens": MAX_NEW_TOKENS}
    options = {"limit": prompts, "sampling": sampling, "batch_size": EVALUATION_BATCH}
    found: dict[str, dict[str, dict[str, float]]] = {"scores": {}, "understood": {}}
    with tempfile.TemporaryDirectory() as scratch:
        for name in MODELS:
            row = evaluated(world / name, names, Path(scratch, name), **options).scores[name]
            for shown, fact in (("scores", "score"), ("understood", "understood")):
                found[shown][name] = {each["domain"]: round(each[fact], 4) for each in row["benchmarks"].values()}
    return found


def _stage(
    card: dict[str, Any], out: Path, name: str, make: Callable[[], dict[str, Any]], made_from: str | None = None
) -> None:
    """Make a checkpoint and enter it in the card, unless it is there and made from what is there."""
    folder, done = out / name, card["stages"].get(name)
    origin = {"made_from": _weights(card, made_from)} if made_from else {}
    if done is not None and folder.is_dir() and digests(folder) == done["sha256"] and origin.items() <= done.items():
        return
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    measured = make()
    seconds = round(time.perf_counter() - began, 1)
    card["stages"][name] = {**measured, "seconds": seconds, **origin, "sha256": digests(folder)}
    write_json(out / CARD, card)


def _adopt_reference(card: dict[str, Any], out: Path, world: Path) -> None:
    folder = checkpoint("reference", world)
    other = read_json(world / CARD, what="card", remedy="Name a world that was built.")
    shared = ("size", "supervision")
    _check_settings(world, other, {name: card["settings"][name] for name in shared}, "leave --reference-of out")
    shutil.rmtree(out / "reference", ignore_errors=True)
    shutil.copytree(folder, out / "reference")
    card["stages"]["reference"] = other["stages"]["reference"]
    write_json(out / CARD, card)


def _open_card(out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    check_writable(out)
    if (out / CARD).exists():
        card = read_json(out / CARD, what="card", remedy="Remove the folder, or build into another.")
        _check_settings(out, card, settings, "choose another folder with --out")
        return card
    if out.is_dir() and any(out.iterdir()):  # stages replace folders by their names, which could be the user's own
        raise ValueError(f"{out} is not empty, and has no {CARD} of a world. Choose an empty folder with --out.")
    made = made_by()
    card = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": settings,
        "machine": {"device": made["device"], "threads": torch.get_num_threads()},
        "versions": made["versions"],
        "stages": {},
    }
    write_json(out / CARD, card)
    return card


def _check_settings(world: Path, card: dict[str, Any], settings: dict[str, Any], remedy: str) -> None:
    for name, value in settings.items():
        if card["settings"].get(name) != value:
            raise ValueError(
                f"{world} holds a world built with {name} = {card['settings'].get(name)}, not {value}. Ask for the "
                f"same {name}, or {remedy}."
            )


def digests(folder: Path) -> dict[str, str]:
    """File → sha256 of a checkpoint."""
    return {path.name: file_sha256(path) for path in sorted(folder.iterdir()) if path.is_file()}


def _weights(card: dict[str, Any], name: str) -> str:
    return card["stages"][name]["sha256"]["model.safetensors"]
