"""A base, three specialists of it, and three adapters over it."""

import pytest
import tiny

NAMES = ("math", "code", "if")


@pytest.fixture(scope="session")
def base():
    return tiny.model(0)


@pytest.fixture(scope="session")
def specialists(base):
    return {name: tiny.specialist(base, seed) for seed, name in enumerate(NAMES, start=1)}


@pytest.fixture(scope="session")
def adapters(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    return {name: tiny.adapter(base, folder / name, seed) for seed, name in enumerate(NAMES, start=1)}


@pytest.fixture(scope="session")
def checkpoints(base, specialists, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    return {name: tiny.save(model, folder / name) for name, model in {"base": base, **specialists}.items()}
