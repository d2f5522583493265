"""Make the small world: the reference, three specialists, their scores and their card. Resumable, stage by stage."""

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

from studies.small_world.models import SHIPPED_SIZE, Size
from studies.small_world.reinforcement import REGIMES, Reinforcement, build_specialist
from studies.small_world.supervised import Supervision, build_reference
from studies.small_world.world_card import describe
from trustmopd.evaluation.benchmarks import load_benchmarks
from trustmopd.evaluation.evaluate import evaluate_checkpoint
from trustmopd.evaluation.read_graded import collect
from trustmopd.evaluation.rows_to_score import Method
from trustmopd.evaluation.sampling import Sampling
from trustmopd.quickstart.benchmarks import BENCHMARKS
from trustmopd.quickstart.experiment import sampling_engine
from trustmopd.quickstart.machine import made_by, reproducibly
from trustmopd.quickstart.prompts import MAX_NEW_TOKENS
from trustmopd.quickstart.shipped import checkpoint, digests
from trustmopd.quickstart.tasks import DOMAINS
from trustmopd.recipe import TeacherSource
from trustmopd.runs.layout import CARD
from trustmopd.training.environment import check_writable
from trustmopd.util.files import read_json, write_json, write_text

__all__ = ["build_reference", "build_specialist", "build_world", "evaluate"]

EVALUATION_TEMPERATURE = 0.6


def build_world(
    out: str | Path,
    seed: int = 0,
    *,
    device: str | None = None,
    size: Size = SHIPPED_SIZE,
    supervision: Supervision | None = None,
    reinforcement: Reinforcement | None = None,
    evaluation_prompts: int = 1000,
    reference_of: str | Path | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """All stages into `out`, and the card. A stage whose files have the digests of the card is not made again.

    `reference_of` is a world that was built with the same seed, size and supervision: its reference is copied, with its
    record, and only the specialists are trained.
    """
    out = Path(out)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    supervision = supervision or Supervision()
    reinforcement = reinforcement or REGIMES["moderate"]
    settings: dict[str, Any] = {
        "seed": seed,
        "size": asdict(size),
        "supervision": asdict(supervision),
        "reinforcement": asdict(reinforcement),
        "evaluation": {"prompts": evaluation_prompts, "temperature": EVALUATION_TEMPERATURE},
    }
    card = _open_card(out, settings)
    if reference_of is not None and "reference" not in card["stages"]:
        _adopt_reference(card, out, Path(reference_of))
    with reproducibly():
        how: dict[str, Any] = {"device": device, "quiet": quiet}
        reference = out / "reference"
        _stage(card, out, "reference", partial(build_reference, reference, seed, supervision, size=size, **how))
        for domain in DOMAINS:
            make = partial(build_specialist, domain, reference, out / domain, seed, reinforcement, **how)
            _stage(card, out, domain, make, made_from="reference")
        weights = {name: _weights(card, name) for name in ("reference", *DOMAINS)}
        if card.get("evaluated") != weights:
            began = time.perf_counter()
            card |= evaluate({name: out / name for name in weights}, evaluation_prompts, quiet=quiet)
            card |= {"evaluated": weights, "evaluation_seconds": round(time.perf_counter() - began, 1)}
    write_json(out / CARD, card)
    write_text(out / "README.md", describe(card))
    return card


def evaluate(checkpoints: dict[str, Path], prompts: int, *, quiet: bool = False) -> dict[str, Any]:
    """model → kind of prompt → share of right answers, on the evaluation splits; and `understood`: of answers that are
    right or wrong only by systematic mistakes."""
    benchmarks = load_benchmarks([benchmark.name for benchmark in BENCHMARKS], {}, prompts)
    sampling = Sampling(EVALUATION_TEMPERATURE, max_new_tokens=MAX_NEW_TOKENS)
    with tempfile.TemporaryDirectory() as scratch:
        for name, folder in checkpoints.items():
            method = Method(name, TeacherSource(model=str(folder)), name)
            evaluate_checkpoint(
                method, Path(scratch, name), benchmarks, sampling, partial(sampling_engine, method), quiet=quiet
            )
        found, _ = collect([Path(scratch)])
    scores: dict[str, dict[str, float]] = {name: {} for name in checkpoints}
    understood: dict[str, dict[str, float]] = {name: {} for name in checkpoints}
    for name in checkpoints:
        for graded in found[name][0].values():
            scores[name][graded.domain] = round(graded.score, 4)
            understood[name][graded.domain] = round(graded.facts["understood"], 4)
    return {"scores": scores, "understood": understood}


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
    for name in ("seed", "size", "supervision"):
        ours, theirs = card["settings"][name], other["settings"][name]
        if ours != theirs:
            raise ValueError(
                f"the reference of {world} was made with {name} = {theirs}, not {ours}. Ask for the same {name}, or "
                "leave --reference-of out."
            )
    shutil.rmtree(out / "reference", ignore_errors=True)
    shutil.copytree(folder, out / "reference")
    card["stages"]["reference"] = other["stages"]["reference"]
    write_json(out / CARD, card)


def _weights(card: dict[str, Any], name: str) -> str:
    return card["stages"][name]["sha256"]["model.safetensors"]


def _open_card(out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    check_writable(out)
    if not (out / CARD).exists():
        if out.is_dir() and any(out.iterdir()):  # stages replace folders by their names, which could be the user's own
            raise ValueError(f"{out} is not empty, and has no {CARD} of a world. Choose an empty folder with --out.")
        made = made_by()
        card: dict[str, Any] = {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "settings": settings,
            "machine": {"device": made["device"], "threads": torch.get_num_threads()},
            "versions": made["versions"],
            "stages": {},
        }
        write_json(out / CARD, card)
        return card
    card = read_json(out / CARD, what="card", remedy="Remove the folder, or build into another.")
    for name, value in settings.items():
        if card["settings"].get(name) != value:
            raise ValueError(
                f"{out} holds a world built with {name} = {card['settings'].get(name)}, not {value}. Remove it, or "
                "choose another folder with --out."
            )
    return card
