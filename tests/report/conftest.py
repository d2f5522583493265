import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import recorded


@pytest.fixture(scope="session")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished trust run; nobody changes it."""
    return recorded.make_run(tmp_path_factory.mktemp("runs") / "trust", scores=recorded.scores_of("trust", 0.44))


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Methods over two seeds on one prompt set, and trust against uniform on another."""
    root = tmp_path_factory.mktemp("study")
    settings = {
        "trust": {},
        "uniform": {"rule": "uniform"},
        "without-mu": {"calibrated": False},
        "response-level": {"granularity": "response"},
        "gamma-3": {"gamma": 3.0},
    }
    for place, (name, config) in enumerate(settings.items()):
        for seed in (0, 1):
            overall = 0.44 - 0.03 * place + 0.01 * seed * (place + 1)
            scores = recorded.scores_of(name, overall)
            run = root / "multicap" / name / f"seed-{seed}"
            recorded.make_run(run, steps=2, seed=seed, scores=scores, **config)
            (run / "recipe.yaml").write_text(f"name: {name}\nprompts: {{path: data/multicap}}\n")
            if name in ("trust", "uniform"):
                run = root / "singlecap" / name / f"seed-{seed}"
                recorded.make_run(run, steps=2, seed=seed, scores=recorded.scores_of(name, overall + 0.02), **config)
                (run / "recipe.yaml").write_text(f"name: {name}\nprompts: {{path: data/singlecap.jsonl}}\n")
    return root


@pytest.fixture(scope="module")  # while it is there, nothing else can run an event loop
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the test extra")
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("needs chromium (Debian: apt-get install chromium)")
    # Chromium refuses its own sandbox to root, who runs tests in containers.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=arguments)
        yield started
        started.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a file; at the end nothing may have been asked of a network, and nothing may have gone wrong."""
    contexts, wrong = [], []

    def visit(file: Path, wait_until: str = "load", **options: Any) -> Any:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: wrong.append(request.url) if "http" in request.url.split(":")[0] else None)
        page.goto(file.as_uri(), wait_until=wait_until)
        page.wait_for_selector("html[data-shown]")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert wrong == []
