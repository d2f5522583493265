"""The first stages of the study, each resumable: the instruction model, the base, the specialists, their scores."""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trustmopd.evaluation import mathematics
from trustmopd.files import read_json, write_json, write_text
from trustmopd.runs.layout import CARD, CHECKPOINTS
from trustmopd.sections import check_fields
from trustmopd.smollm2.code_judge import judge
from trustmopd.smollm2.domains import Data, demonstrations, evaluation_tasks, training_tasks
from trustmopd.smollm2.gguf_base import find_gguf, load_instruct, save_base
from trustmopd.smollm2.lora import ADAPTER
from trustmopd.smollm2.policy_scores import score
from trustmopd.smollm2.reinforcement import finished, train_specialist
from trustmopd.smollm2.restarts import with_restarts
from trustmopd.smollm2.settings import Settings
from trustmopd.smollm2.side_by_side import Again, share_gpu, side_by_side
from trustmopd.smollm2.supervised import train_adapter
from trustmopd.smollm2.tasks import DOMAINS, SCORED
from trustmopd.testbed.machine import made_by, quiet
from trustmopd.testbed.shipped import digest
from trustmopd.text_tables import TextTable, text_table
from trustmopd.training.environment import check_writable

_REMEDY = "Choose another folder with --out."


class Study:
    """A folder with the card, the adapters, the base that they belong to, and scores."""

    def __init__(self, out: Path, changes: Sequence[str], data: Data, gguf: Path | None) -> None:
        """`changes` are made to the settings that the folder was begun with, or else to the standard ones."""
        self.out, self.data, self.gguf = out, data, gguf
        mathematics.ready()
        check_writable(out)
        quiet()
        path = out / CARD
        self.card: dict[str, Any] = read_json(path, what="card", remedy=_REMEDY) if path.is_file() else {"stages": {}}
        try:
            begun = check_fields(Settings, self.card.get("settings", {}), path)
        except ValueError as error:
            raise ValueError(f"{error}\nThis folder was made by another version of trustmopd. {_REMEDY}") from error
        self.settings = begun.with_changes(changes)
        if "base" in self.card["stages"] and (begun.base, begun.lora) != (self.settings.base, self.settings.lora):
            raise ValueError(f"{out} has a base made with {begun.base} and {begun.lora}. {_REMEDY}")

    def adapter(self, name: str) -> Path:
        return self.out / "adapters" / name

    def instruct(self) -> TextTable:
        """The instruction model as it is, rounded to bfloat16, and its scores."""
        folder = self.out / "instruct"
        if not (folder / "model.safetensors").is_file():
            model, tokenizer = load_instruct(find_gguf(self.gguf))
            self._enter("instruct", {"fingerprint": save_base(model, tokenizer, None, folder)})
        return self._score("instruct", folder, {"instruct": None})

    def specialists(self, only: Sequence[str], jobs: int, deadline: float | None, again: Again) -> list[str]:
        """Trains those of `only` here; or all three, `jobs` at a time in processes of their own. Returns those that
        ran out of time and stopped at a checkpoint."""
        self.base()
        todo = [domain for domain in only or DOMAINS if not self._finished(domain)]
        if only:
            share_gpu(jobs)
            for domain in todo:
                self._specialist(domain, deadline)
            return []
        side_by_side(todo, lambda domain: again("specialists", [domain]), jobs, deadline)
        for domain in DOMAINS:
            self._enter(domain, {**self._record(domain), "finished": self._finished(domain)})
        return [domain for domain in DOMAINS if not self._finished(domain)]

    def scores(self) -> TextTable:
        """The base and the specialists that there are, each on the held-out prompts of every domain."""
        self.base()
        adapters = {domain: self.adapter(domain) for domain in DOMAINS if (self.adapter(domain) / ADAPTER).is_file()}
        return self._score("specialists" if adapters else "base", self.out / "base", {"base": None, **adapters})

    def base(self) -> None:
        """Supervised training and the merge. Where the adapter is there already, only the merge."""
        folder, adapter = self.out / "base", self.adapter("base")
        if (folder / "model.safetensors").is_file():
            return
        model, tokenizer = load_instruct(find_gguf(self.gguf))
        if not (adapter / ADAPTER).is_file():
            began = time.perf_counter()
            shown = demonstrations(self.settings.base, self.data, self.settings.seed)
            made = train_adapter(model, tokenizer, shown, self.settings, adapter)
            self._enter("base", {**made, "seconds": round(time.perf_counter() - began, 1)})
            model, tokenizer = load_instruct(find_gguf(self.gguf))  # training put an adapter into the other
        found = save_base(model, tokenizer, adapter, folder)
        expected = self.card["stages"].setdefault("base", {}).get("fingerprint")
        if expected is not None and found != expected:
            shutil.rmtree(folder)
            raise ValueError(f"the merged base has fingerprint {found}, and the card says {expected}. {_REMEDY}")
        self._enter("base", {"fingerprint": found, "sha256": digest(adapter / ADAPTER)})

    def _specialist(self, domain: str, deadline: float | None) -> None:
        how = self.settings.of_specialist(domain)
        tasks = training_tasks(domain, how.pool, self.settings.base, self.data, self.settings.seed)
        given = (domain, self.out / "base", tasks, self.settings, self.adapter(domain), self.out / CHECKPOINTS / domain)

        def train(compiled: bool) -> dict[str, Any]:
            return train_specialist(*given, deadline, self._record(domain), compiled=compiled)

        made, faults = with_restarts(domain, train)
        made["faults"] = faults
        if domain == "code":
            made["judged_by"] = judge()
        made["sha256"] = digest(self.adapter(domain) / ADAPTER)
        write_json(self.out / "specialists" / f"{domain}.json", made)

    def _record(self, domain: str) -> dict[str, Any]:
        path = self.out / "specialists" / f"{domain}.json"
        return read_json(path, what="record", remedy=_REMEDY) if path.is_file() else {}

    def _finished(self, domain: str) -> bool:
        """By the current settings: a higher target makes it continue."""
        return finished(self._record(domain).get("rewards", ()), self.settings.of_specialist(domain))

    def _score(self, stage: str, base: Path, adapters: Mapping[str, Path | None]) -> TextTable:
        tasks = {kind: evaluation_tasks(kind, self.settings.scoring.prompts, self.data) for kind in SCORED}
        began = time.perf_counter()
        matrix, responses = score(base, adapters, tasks, self.settings)
        seconds = round(time.perf_counter() - began, 1)
        write_json(
            self.out / "scores" / f"{stage}.json",
            {"scores": matrix, "seconds": seconds, "code_judged_by": judge(), **made_by()},
        )
        lines = [json.dumps(each, ensure_ascii=False) + "\n" for each in responses]
        write_text(self.out / "scores" / f"{stage}-responses.jsonl", "".join(lines))
        rows = [(name, *(f"{row[kind]:.1%}" for kind in SCORED)) for name, row in matrix.items()]
        return text_table(("policy", *SCORED), rows)

    def _enter(self, stage: str, measured: Mapping[str, Any]) -> None:
        self.card["stages"].setdefault(stage, {}).update(measured)
        self.card |= {"settings": self.settings.model_dump(), **made_by(), "date": datetime.now(UTC).date().isoformat()}
        write_json(self.out / CARD, self.card)
