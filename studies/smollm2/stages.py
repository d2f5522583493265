"""The stages of the study, each a few calls of the package over the recipes in `recipes/smollm2-135m/`."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from studies.smollm2.benchmarks import name_of
from studies.smollm2.domains import demonstrations, training_tasks
from studies.smollm2.lora import ADAPTER
from studies.smollm2.mixed import KINDS
from studies.smollm2.prompt_sets import FOLDER, evaluation_file, write_prompts
from studies.smollm2.reinforcement import train_specialist
from studies.smollm2.results import last_loss, write_results
from studies.smollm2.settings import SEED, SPECIALISTS, Base
from studies.smollm2.supervised import make_base
from studies.smollm2.tasks import DOMAINS
from studies.smollm2.weights import find_gguf, load_gguf
from trustmopd.evaluation.aggregation import score_table
from trustmopd.evaluation.benchmarks import Questions, load_benchmarks
from trustmopd.evaluation.entries import Entry, entries_of
from trustmopd.evaluation.of_recipe import evaluate_entries, hand_over, sampling_of, scored
from trustmopd.evaluation.sampling import Sampling, make_sampler
from trustmopd.evaluation.sandbox.sandbox import check_sandbox
from trustmopd.recipe import Recipe, load_recipe
from trustmopd.runs import RunDirectory
from trustmopd.runs.layout import CHECKPOINTS
from trustmopd.training.stages import diagnose_recipe, train_recipe
from trustmopd.util.files import file_sha256, write_json

RECIPES = Path(__file__).parents[2] / "recipes" / "smollm2-135m"
#: Base, teachers and their average are scored with this recipe alone. The others would make the average again.
REFERENCE = "singlecap-trust"
#: What is diagnosed before training, with so many rollouts of each domain.
DIAGNOSED, ROLLOUTS = (REFERENCE, "multicap-trust"), 96
#: Tried on uniform weights, each for a third of the recipe's steps.
SWEPT, RATES = "singlecap-uniform", (5e-4, 1e-3, 2e-3)
#: Of each public benchmark, the first prompts; they ask for longer responses.
PUBLIC_PROMPTS, PUBLIC_TOKENS = 150, 256
BATCH = 300


@dataclass(frozen=True)
class Study:
    """`only` are names of recipes or domains, `changes` fields of the recipes, `data` local copies by data set."""

    out: Path = Path(FOLDER)
    only: Sequence[str] = ()
    changes: Sequence[str] = ()
    data: Mapping[str, str] = field(default_factory=dict)
    gguf: Path | None = None

    def chosen(self, names: Sequence[str]) -> list[str]:
        if not self.only:
            return list(names)
        chosen = [name for name in names if name in self.only]
        if not chosen:
            print(f"Nothing to do for {', '.join(self.only)}: it would be {', '.join(names)}.", flush=True)
        return chosen

    def recipe(self, name: str, *changes: str) -> Recipe:
        """With its files below `out`."""
        recipe = load_recipe(RECIPES / f"{name}.yaml", [*self.changes, *changes])
        return Recipe.model_validate_json(recipe.model_dump_json().replace(f"{FOLDER}/", f"{self.out.as_posix()}/"))

    def recipes(self, names: Sequence[str] = ()) -> list[Recipe]:
        return [self.recipe(name) for name in self.chosen(names or recipe_names())]


def recipe_names() -> list[str]:
    """The reference rows' recipe is the first: the others' scores are compared with them."""
    return sorted((path.stem for path in RECIPES.glob("*.yaml")), key=lambda name: (name != REFERENCE, name))


def base(study: Study) -> None:
    """Supervised training of the instruction model, merged."""
    make_base(
        study.out,
        lambda: load_gguf(find_gguf(study.gguf)),
        lambda: demonstrations(Base(), study.data, SEED),
        Base(),
    )


def specialists(study: Study) -> None:
    """GRPO in each domain. To train one again, remove its adapter and its checkpoints."""
    for domain in study.chosen(DOMAINS):
        adapter, settings = study.out / "adapters" / domain, SPECIALISTS[domain]
        if (adapter / ADAPTER).is_file():
            continue
        if domain == "code":
            check_sandbox()
        print(f"Training the specialist: {domain}", flush=True)
        tasks = training_tasks(domain, settings.pool, Base(), study.data, SEED)
        made = train_specialist(study.out / "base", tasks, settings, adapter, study.out / CHECKPOINTS / domain)
        record = {"domain": domain, **made, "sha256": file_sha256(adapter / ADAPTER)}
        write_json(study.out / "specialists" / f"{domain}.json", record)


def prompts(study: Study) -> None:
    """Held-out prompts, and the two sets to distil on."""
    write_prompts(study.out, study.data)


def diagnose(study: Study) -> None:
    """Whether displacement separates the specialists, before any training."""
    for recipe in study.recipes(DIAGNOSED):
        if not RunDirectory(recipe.run_directory(recipe.seeds[0])).diagnosis.is_file():
            print(f"{recipe.name}: {diagnose_recipe(recipe, ROLLOUTS)[0].verdict}", flush=True)


def sweep(study: Study) -> None:
    """Which learning rate has the lowest loss over the last quarter of its steps. No held-out prompt is used for it."""
    steps = study.recipe(SWEPT).training["max_steps"] // 3
    for rate in RATES:
        changes = (f"training.learning_rate={rate}", f"training.max_steps={steps}", "seeds=[0]")
        recipe = study.recipe(SWEPT, *changes, f"output={FOLDER}/sweep/lr-{rate:g}")
        train_recipe(recipe, resume=True)
        print(f"learning rate {rate:g}: loss {last_loss(recipe.output):.4f}", flush=True)


def distil(study: Study) -> None:
    """Every recipe with all its seeds, each from its last checkpoint."""
    for recipe in study.recipes():
        print(f"Distilling: {recipe.name}", flush=True)
        train_recipe(recipe, resume=True)


def evaluate(study: Study) -> None:
    """Students, base, teachers and average on the held-out prompts of one domain."""
    out = study.out / "evaluation"
    for recipe, methods in _to_score(study):
        loaded = load_benchmarks(recipe.evaluation.benchmarks, recipe.evaluation.data)
        _score(recipe, methods, out, loaded, sampling_of(recipe))
        hand_over(recipe, out, list(recipe.evaluation.data))
    _show(out)


def mixed(study: Study) -> None:
    """The same policies on the held-out prompts of two domains."""
    loaded = _held_out(study, KINDS)
    for recipe, methods in _to_score(study):
        _score(recipe, methods, study.out / "mixed", loaded, sampling_of(recipe))
    _show(study.out / "mixed")


def public(study: Study) -> None:
    """And on SVAMP's held-out problems, MBPP and IFEval."""
    data = {name: path for name, path in study.data.items() if name in ("mbpp", "ifeval")}
    loaded = [*_held_out(study, ["svamp"]), *load_benchmarks(["mbpp", "ifeval"], data)]
    for benchmark in loaded:
        del benchmark.rows[PUBLIC_PROMPTS:]
    for recipe, methods in _to_score(study):
        sampling = sampling_of(recipe).model_copy(update={"samples": 1, "max_new_tokens": PUBLIC_TOKENS})
        _score(recipe, methods, study.out / "public", loaded, sampling)
    _show(study.out / "public")


def results(study: Study) -> None:
    """Tables, figures and one report of all runs."""
    print(f"Tables: {write_results(study.out)}", flush=True)


STAGES = {
    stage.__name__: stage
    for stage in (base, specialists, prompts, diagnose, sweep, distil, evaluate, mixed, public, results)
}


def _held_out(study: Study, kinds: Sequence[str]) -> list[Questions]:
    file = Path(__file__).with_name("benchmarks.py")
    data = {name_of(kind): str(evaluation_file(study.out, kind)) for kind in kinds}
    return load_benchmarks([f"{file}:{name}" for name in data], data)


def _to_score(study: Study) -> Iterator[tuple[Recipe, list[Entry]]]:
    """The recipes that have something to score, and what. Those that are not trained yet are named."""
    for recipe in study.recipes():
        methods, notes = entries_of(recipe, None if recipe.name == REFERENCE else [recipe.name])
        for note in notes:
            print(note, flush=True)
        if methods:
            yield recipe, methods


def _score(
    recipe: Recipe, methods: Sequence[Entry], out: Path, loaded: Sequence[Questions], sampling: Sampling
) -> None:
    evaluate_entries(
        *(recipe, methods, out, loaded, sampling),
        lambda method: make_sampler(sampling.engine, method.source, method.base, batch_size=BATCH),
        jobs=os.cpu_count() or 1,
    )


def _show(folder: Path) -> None:
    print(score_table(scored([folder], folder).scores).to_markdown(), flush=True)
