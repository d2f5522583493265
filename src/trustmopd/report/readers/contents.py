"""What the files of a run say. What is missing or damaged is noted, with the remedy."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from trustmopd.recipe.rules import scores_of
from trustmopd.recipe.yaml_layers import parse
from trustmopd.runs import RunDirectory, located
from trustmopd.runs.layout import CARD, COST
from trustmopd.runs.schemas import read_file
from trustmopd.util.messages import first_few


@dataclass(frozen=True)
class Missing:
    """Something that a report would show and this run does not have, and how to add it."""

    what: str
    how: str = ""

    def __str__(self) -> str:
        return f"{self.what} {self.how}".strip()


@dataclass(frozen=True)
class Contents:
    """The files of one run, each read once. `missing` grows as they are read."""

    path: Path
    missing: list[Missing] = field(default_factory=list)

    def _note(self, what: str, how: str = "") -> None:
        self.missing.append(Missing(what, how))

    def _json(self, file: Path, what: str, how: str | None = None) -> dict[str, Any]:
        """The file's fields; empty if it is absent or damaged. Damage is noted; absence is noted only if `how` is
        given."""
        try:
            return read_file(file, what=what, remedy=f"It is left out. {how or ''}".strip())
        except FileNotFoundError:
            if how:
                self._note(f"There is no {os.path.relpath(file, self.path)} ({what}).", how)
        except (ValueError, OSError) as error:
            self._note(str(error))
        return {}

    @property
    def _files(self) -> RunDirectory:
        return RunDirectory(self.path)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return self._json(self._files.manifest, "which models and settings", "Training writes it when it begins.")

    @cached_property
    def config(self) -> dict[str, Any]:
        return self.manifest.get("config", {})

    @cached_property
    def calibration(self) -> dict[str, Any]:
        rule = scores_of(self.config) if self.config else None
        how = "Make it with `trustmopd calibrate RECIPE`." if rule and rule.calibrated else None
        return self._json(self._files.calibration, "mu of each teacher", how)

    @cached_property
    def cost(self) -> dict[str, Any]:
        """Includes the cost of the calibration, also if another run or `trustmopd calibrate` made it."""
        how = "Training writes it with every checkpoint and at its end."
        cost = self._json(self._files.cost, "what the run cost", how)
        used = self.config.get("calibration_path")
        if not cost or cost.get("calibration") or not used or not self.calibration:
            return cost
        bill = Path(used).with_name(COST)
        how = "Keep the folder in which `trustmopd calibrate`, or the seed that calibrated, wrote it."
        paid = self._json(located(bill, self.path, self.manifest) or bill, "what calibrating cost", how)
        return {**cost, "calibration": paid.get("calibration")}

    @cached_property
    def diagnosis(self) -> dict[str, Any]:
        file, how = self._files.diagnosis, "Run `trustmopd diagnose RECIPE` again."
        return self._json(file, "calibrated scores before training", how) if file.exists() else {}

    @cached_property
    def _rows(self) -> dict[str, Mapping[str, Any]]:
        how = "Score the student with `trustmopd evaluate RECIPE`; tables of scores need it."
        return self._json(self._files.scores, "scores on the benchmarks", how)

    @cached_property
    def recipe_text(self) -> str:
        """Empty if training was started without a recipe."""
        return self._files.recipe.read_text(encoding="utf-8") if self._files.recipe.is_file() else ""

    @cached_property
    def recipe(self) -> dict[str, Any]:
        return parse(self.recipe_text, str(self._files.recipe)) or {}

    @cached_property
    def _prompt_path(self) -> str | None:
        """The prompt set, if a recipe names one."""
        prompts = self.recipe.get("prompts")
        return str(prompts["path"]) if isinstance(prompts, dict) and prompts.get("path") else None

    @cached_property
    def logged(self) -> list[dict[str, float]]:
        """The metrics, line by line: steps, evaluations, and the summary of a run that reached its end."""
        file = self._files.metrics
        try:
            lines = [_numbers_of(line) for line in file.read_bytes().splitlines()]
        except OSError as error:
            self._note(f"{file.name} cannot be read ({error.strerror}).", "Training writes it step by step.")
            return []
        if bad := [str(number) for number, numbers in enumerate(lines, start=1) if numbers is None]:
            # The last line of a killed run may be incomplete.
            self._note(f"{file.name} has lines that cannot be read: {first_few(bad)}.", "They are left out.")
        return [numbers for numbers in lines if numbers is not None]

    @cached_property
    def decontamination(self) -> dict[str, dict[str, int]]:
        """Pool → its candidates, how many each rule removed, and how many were kept. From the card of the prompt
        set."""
        if self._prompt_path is None:
            return {}
        path = located(self._prompt_path, self.path, self.manifest) or Path(self._prompt_path)
        card = (path if os.path.isdir(path) else path.parent) / CARD
        return self._json(card, "the prompt set's card").get("decontamination", {}).get("pools", {})


def _numbers_of(line: bytes) -> dict[str, float] | None:
    """The numbers of a line of metrics; None for a line that training did not write as a whole."""
    try:
        logged = json.loads(line)
    except ValueError:  # not JSON, or not UTF-8
        return None
    if not isinstance(logged, dict):
        return None
    numbers = {name: value for name, value in logged.items() if type(value) in (int, float)}
    whole = math.isfinite(numbers.get("step", math.nan)) and ("loss" in numbers) == ("loss" in logged)
    return numbers if whole else None
