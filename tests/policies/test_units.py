"""Who shares weights with whom, and where they live."""

from typing import Any

import pytest

from trustmopd.policies import REFERENCE, Teacher, as_teachers
from trustmopd.policies.graph import Unit, units_of


def units(teachers: dict[str, Any], placement: str = "resident", reference: Teacher | None = None) -> dict[str, Unit]:
    found = units_of(as_teachers(teachers), reference, with_reference=True, placement=placement)
    return {", ".join(unit.names): unit for unit in found}


def test_a_teachers_own_place_wins_over_that_of_all() -> None:
    found = units({"a": "a", "b": Teacher("b", on="local"), "c": Teacher("c", on="offload")}, "ray")
    assert {name: unit.on for name, unit in found.items()} == {
        REFERENCE: "ray",
        "a": "ray",
        "b": "local",
        "c": "offload",
    }


def test_adapters_over_one_base_share_it_with_the_reference_where_they_live_together() -> None:
    adapters = {
        "a": Teacher(adapter="a", on="ray", replicas=2),
        "b": Teacher(adapter="b", on="ray", gpus=0.5),
        "c": Teacher(adapter="c"),
    }
    found = units(adapters)
    assert set(found) == {"a, b", "c, reference"}
    assert (found["a, b"].on, found["a, b"].gpus, found["a, b"].replicas) == ("ray", 0.5, 2)
    assert found["a, b"].itself is None and found["c, reference"].itself == REFERENCE
    (all_there,) = units(adapters, "ray").values()
    assert set(all_there.names) == {"a", "b", "c", REFERENCE} and all_there.replicas == 2


@pytest.mark.parametrize(
    ("teacher", "told"),
    [
        (Teacher("a", on="somewhere"), "somewhere"),
        (Teacher("a", on="ray", gpus=1.5), "1.5"),
        (Teacher("a", on="ray", gpus=-1), "-1"),
        (Teacher("a", on="ray", replicas=0), "0"),
        (Teacher("a", gpus=1), "on: ray"),
        (Teacher("a", on="offload", replicas=2), "offload"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_place_that_cannot_be_is_refused_by_name(teacher: Teacher, told: str) -> None:
    with pytest.raises(ValueError, match=f"teacher 'math'.*{told}"):
        units({"math": teacher})
