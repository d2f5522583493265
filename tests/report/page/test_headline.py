"""The report's first sentence says how sure it is: from what `trustmopd evaluate` wrote, down to the page."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_runs
from command import run

from trustmopd.evaluation import of_recipe
from trustmopd.evaluation.sampling import Response
from trustmopd.report.readers.run import Certainty, over_seeds


class Knows:
    """Answers the first so many sums, and no other."""

    def __init__(self, sums: int) -> None:
        self.sums = sums

    def sample(self, requests: Any, _: Any) -> Iterator[Response]:
        for request in requests:
            number = int(request.id)
            yield Response(request, f"It is {number + 1 if number < self.sums else -1}.", 3, False, False, 0.1)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[str, dict[str, Any]]]:
    """Trained with trust and with uniform weights, evaluated and reported by the verbs: the page's first
    sentence, and the scores of trust, where the initial student, its teacher and the two students know so many sums."""
    folder = tmp_path_factory.mktemp("headline")
    models = small_runs.checkpoints(folder)
    del models["if"]
    training = {"max_steps": 1, "save_steps": 1, "record_allocation_every": 1}
    for rule in ("trust", "uniform"):
        own = {"allocation": {"rule": rule}, "output": str(folder / rule)}
        path = small_runs.recipe(folder, models, training, name=rule, **own)
        path.rename(folder / f"{rule}.yaml")
        run("train", folder / f"{rule}.yaml")

    def report(out: Path, prompts: int = 20, **known: int) -> tuple[str, dict[str, Any]]:
        rows = [{"id": str(i), "prompt": f"{i} + 1 =", "answer": i + 1} for i in range(prompts)]
        (out / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))

        def sampler(_: str, source: Any, *rest: Any, **options: Any) -> Knows:
            return Knows(next((count for name, count in known.items() if name in Path(source.model).parts), 0))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(of_recipe, "make_sampler", sampler)
            for rule in ("trust", "uniform"):
                shutil.copytree(folder / rule, out / rule)
                fields = [f"output={out / rule}", f"evaluation.benchmarks=[{out / 'sums.jsonl'}]"]
                run("evaluate", folder / f"{rule}.yaml", *fields)
        return page_of(out), json.loads((out / "trust" / "evaluation" / "scores.json").read_text())

    return report


def page_of(folder: Path) -> str:
    """The first sentence."""
    run("report", folder / "trust", folder / "uniform", "--out", folder)
    page = (folder / "report.html").read_text()
    return re.search("<p>(.*?)</p>", page)[1]


DIFFER = "trust and uniform weights differ"


def test_one_of_twenty_against_two_of_twenty_is_no_recovery(report: Callable, tmp_path: Path) -> None:
    said, rows = report(tmp_path, base=1, math=3, trust=2, uniform=1)
    assert rows["trust"]["recovery"] == pytest.approx(0.5) and " 50% " in said
    assert "20 prompts" in said and DIFFER in said
    assert rows["trust"]["interval"]["recovery"] is None  # drawn again, some sets have no prompt that the teacher adds
    assert "too few" in said and "no gap" in said


def test_a_gain_that_resampled_prompts_may_take_away_is_none(report: Callable, tmp_path: Path) -> None:
    said, rows = report(tmp_path, base=8, math=18, trust=9, uniform=12)
    low, high = rows["trust"]["interval"]["recovery"]
    assert low == 0 < high and f"95% interval {low:.0%} to {high:.0%}; 20 prompts" in said
    assert "too few" in said and DIFFER in said


def test_what_many_prompts_show_is_said_with_its_interval_and_without_a_doubt(report: Callable, tmp_path: Path) -> None:
    said, rows = report(tmp_path, prompts=300, base=30, math=270, trust=250, uniform=100)
    low, high = rows["trust"]["interval"]["recovery"]
    assert 0.8 < low < rows["trust"]["recovery"] < high < 1
    assert f"{rows['trust']['recovery']:.0%}" in said and " 29% " in said
    assert f"{low:.0%} to {high:.0%}; 300 prompts" in said
    assert "too few" not in said and DIFFER not in said


@pytest.mark.unit
def test_the_interval_of_a_mean_over_seeds_is_within_the_mean_of_theirs() -> None:
    generator = np.random.default_rng(0)
    shared, own = generator.normal(size=(1, 4000)), generator.normal(size=(3, 4000))
    draws = np.array([[0.1], [0.2], [0.3]]) + shared + own  # of three seeds, over the same prompts
    each = [Certainty(20, {"overall": tuple(np.quantile(seed, [0.025, 0.975]))}) for seed in draws]
    low, high = over_seeds(each).intervals["overall"]
    exact = np.quantile(draws.mean(axis=0), [0.025, 0.975])
    assert low < exact[0] and exact[1] < high and high - low < 1.5 * np.ptp(exact)
    lost = Certainty(9, {"overall": None})
    assert over_seeds([*each, lost]) == Certainty(9, {"overall": None})
    assert over_seeds([*each, Certainty(20)]).intervals == {} and over_seeds([]) == Certainty()
