"""Who is measured from whom, who shares weights with whom, and where they live."""

from typing import Any

import pytest

from trustmopd.policies import REFERENCE, Teacher, resolve
from trustmopd.policies.graph import PolicyGraph, Weights

pytestmark = pytest.mark.unit

STUDENT = "org/student"


def graph_of(teachers: dict[str, Any], placement: str = "resident", reference: Any = None, **given: Any) -> PolicyGraph:
    return resolve(teachers, reference, STUDENT, placement=placement, **given)


def shared(graph: PolicyGraph) -> dict[str, Weights]:
    """The sets of weights, by who lives on them."""
    return {", ".join(weights.names): weights for weights in graph.weights}


def measured_from(graph: PolicyGraph) -> dict[str, str | None]:
    return {name: teacher.reference for name, teacher in graph.teachers.items()}


# ---- Who is measured from whom


def test_the_initial_student_is_asked_once_whether_or_not_a_teacher_is_measured_from_it() -> None:
    graph = graph_of({"a": "a"}, with_initial=True)
    assert graph.initial == REFERENCE and list(shared(graph)) == ["a", REFERENCE]
    graph = graph_of({"a": Teacher("a", reference="org/other")}, with_initial=True)
    assert graph.initial == REFERENCE and list(shared(graph)) == ["a", REFERENCE, "reference:a"]
    graph = graph_of({"a": "a"}, reference="org/base", with_initial=True)
    assert graph.initial == "reference:" and list(shared(graph)) == ["a", REFERENCE, "reference:"]
    assert graph.references["reference:"].role == "the initial student"
    assert list(graph_of({"a": "a"}, with_reference=False, with_initial=True).scored) == [REFERENCE]


def test_all_teachers_are_measured_from_the_common_reference_unless_they_have_their_own() -> None:
    graph = graph_of({"a": "a", "b": Teacher("b", reference="org/other"), "c": Teacher("c", reference="org/other")})
    assert measured_from(graph) == {"a": REFERENCE, "b": "reference:b", "c": "reference:b"}
    assert {name: policy.source for name, policy in graph.scored.items()} == {
        REFERENCE: f"{STUDENT} (initial student)",
        "reference:b": "org/other",
    }
    assert graph.measured_from("reference:b") == ["b", "c"]
    assert list(shared(graph)) == ["a", "b", "c", REFERENCE, "reference:b"]


@pytest.mark.parametrize("named", [STUDENT, "student", Teacher(STUDENT)])
def test_the_student_by_any_name_is_the_initial_student(named: Any) -> None:
    common = graph_of({"a": "a"}, reference=named).references[REFERENCE]
    assert common.checkpoint is None
    graph = graph_of({"a": "a", "b": Teacher("b", reference=named)}, reference="org/base")
    assert measured_from(graph) == {"a": REFERENCE, "b": "reference:b"} and graph.teachers["b"].is_fallback
    assert graph.references["reference:b"].checkpoint is None


def test_another_revision_of_the_student_is_another_model() -> None:
    graph = graph_of({"a": Teacher("a", reference=Teacher(STUDENT, revision="step-1000"))})
    own = graph.references["reference:a"].checkpoint
    assert own is not None and own.revision == "step-1000"
    assert list(graph.references) == ["reference:a"], "the common one measures nobody"


def test_a_rule_without_scores_has_no_references_but_those_under_adapters() -> None:
    own = Teacher("org/other", adapter="b", reference="org/other")
    graph = graph_of({"a": "a", "b": own, "c": Teacher(adapter="c")}, with_reference=False)
    assert measured_from(graph) == dict.fromkeys("abc") and graph.scored == {}
    assert list(graph.references) == [REFERENCE, "reference:b"]
    assert {name: weights.bare for name, weights in shared(graph).items()} == {"a": "a", "b": None, "c": None}


def test_one_teacher_alone_is_loaded_and_all_are_known() -> None:
    graph = graph_of({"a": "a", "b": Teacher(adapter="b")}, only="b", with_reference=False)
    assert list(graph.teachers) == ["a", "b"] and graph.used == ["b"] and list(shared(graph)) == ["b"]


# ---- Who shares weights, and where they live


def test_a_teachers_own_place_wins_over_that_of_all() -> None:
    graph = graph_of({"a": "a", "b": Teacher("b", on="resident"), "c": Teacher("c", on="offload")}, "ray")
    assert {name: weights.on for name, weights in shared(graph).items()} == {
        REFERENCE: "ray",
        "a": "ray",
        "b": "resident",
        "c": "offload",
    }
    assert graph.asked_for("ray") == "teacher_placement = 'ray'"
    assert graph.asked_for("offload") == "on: offload (teacher 'c')" and graph.asked_for("sharded") == ""


def test_the_word_of_recipes_of_0_1_0_means_resident() -> None:
    assert graph_of({"a": Teacher("a", on="local")}, "ray").teachers["a"].on == "resident"


def test_adapters_over_one_base_share_it_with_the_reference_where_they_live_together() -> None:
    adapters = {
        "a": Teacher(adapter="a", on="ray", replicas=2),
        "b": Teacher(adapter="b", on="ray", gpus=0.5),
        "c": Teacher(adapter="c"),
    }
    found = shared(graph_of(adapters))
    assert set(found) == {"a, b", "c, reference"}
    assert (found["a, b"].on, found["a, b"].gpus, found["a, b"].replicas) == ("ray", 0.5, 2)
    assert found["a, b"].bare is None and found["c, reference"].bare == REFERENCE
    (all_there,) = shared(graph_of(adapters, "ray")).values()
    assert set(all_there.names) == {"a", "b", "c", REFERENCE} and all_there.replicas == 2


def test_an_adapter_on_its_own_reference_shares_its_weights_and_a_revision_keeps_it_apart() -> None:
    own = {"reference": "org/other"}
    graph = graph_of({"a": Teacher("org/other", adapter="a", **own), "b": Teacher("org/other", adapter="b", **own)})
    assert list(shared(graph)) == ["a, b, reference:a"]
    graph = graph_of({"a": Teacher("org/other", adapter="a", revision="v2", **own)})
    assert list(shared(graph)) == ["a", "reference:a"], "the revision may be the adapter's"


def test_an_adapter_sits_on_the_common_reference_though_it_has_one_of_its_own() -> None:
    graph = graph_of({"a": Teacher(adapter="a", reference="org/other")}, reference="org/base")
    assert list(shared(graph)) == ["a", "reference:a"]
    checkpoint = shared(graph)["a"].checkpoint
    assert checkpoint is not None and checkpoint.model == "org/base"


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
        graph_of({"math": teacher})


def test_one_reference_in_two_places_is_refused() -> None:
    teachers = {name: Teacher(name, reference=Teacher("org/other", on=on)) for name, on in (("a", "ray"), ("b", None))}
    with pytest.raises(ValueError, match="teacher 'a'.*teacher 'b'.*same place"):
        graph_of(teachers)


# ---- What each reads


def readings(graph: PolicyGraph) -> dict[str, str]:
    return {name: policy.reading for name, policy in graph.policies.items()}


def test_a_trained_teachers_reference_reads_as_it_does_and_a_prompted_ones_as_the_student() -> None:
    view = {"system": "think"}
    graph = graph_of({"a": Teacher("a", view=view), "b": "b", "c": Teacher("c", view=view)})
    assert measured_from(graph) == {"a": "reference:a", "b": REFERENCE, "c": "reference:a"}
    assert readings(graph) == {
        "a": "system 'think'",
        "b": "",
        "c": "system 'think'",
        REFERENCE: "",
        "reference:a": "system 'think'",
    }
    assert list(shared(graph)) == ["a", "b", "c", f"{REFERENCE}, reference:a"], "one set of weights, read twice"
    graph = graph_of({"a": Teacher(view=view), "b": Teacher(STUDENT, view={"prompt": "hint"})})
    assert measured_from(graph) == {"a": REFERENCE, "b": REFERENCE} and readings(graph)[REFERENCE] == ""
    (one,) = graph.weights
    assert set(one.names) == {"a", "b", REFERENCE} and one.bare == REFERENCE and one.checkpoint is None
    trained = graph_of({"a": Teacher(adapter="a", view=view)})
    assert readings(trained)["reference:a"] == "system 'think'", "an adapter is not the reference's own weights"


def test_the_view_of_a_reference_can_be_set_either_way() -> None:
    view = {"system": "think"}
    graph = graph_of({"a": Teacher("a", view=view, reference=Teacher(view={}))})
    assert measured_from(graph) == {"a": REFERENCE} and readings(graph)[REFERENCE] == ""
    graph = graph_of({"a": Teacher(view=view, reference=Teacher(view={"system": "do not think"}))})
    assert readings(graph)["reference:a"] == "system 'do not think'"
    graph = graph_of({"a": Teacher("a", view=view), "b": "b"}, reference=Teacher("org/base", view={"system": "x"}))
    assert measured_from(graph) == {"a": REFERENCE, "b": REFERENCE} and readings(graph)[REFERENCE] == "system 'x'"


def test_several_views_of_one_model_load_it_once_and_another_place_keeps_them_apart() -> None:
    views = {name: {"system": name} for name in "abc"}
    graph = graph_of({name: Teacher("org/one", view=view) for name, view in views.items()}, with_reference=False)
    assert list(shared(graph)) == ["a, b, c"] and shared(graph)["a, b, c"].bare == "a"
    adapters = graph_of({name: Teacher(adapter="one", view=view) for name, view in views.items()}, with_reference=False)
    (weights,) = adapters.weights
    assert set(weights.adapters) == {"a", "b", "c"} and weights.bare is None
    apart = {"a": Teacher("org/one", view=views["a"]), "b": Teacher("org/one", view=views["b"], on="offload")}
    assert list(shared(graph_of(apart, with_reference=False))) == ["a", "b"]
    # One with a view beside one without are two readings, not one policy whose view is in doubt.
    assert list(shared(graph_of({"a": Teacher("org/one", view=views["a"]), "b": "org/one"}, with_reference=False))) == [
        "a, b"
    ]


def test_the_template_of_a_reference_is_its_teachers_unless_it_was_given_its_own() -> None:
    own = {"template": "own"}
    graph = graph_of({"a": Teacher("a", view=own), "b": Teacher("b", view=own)})
    assert {name: policy.template for name, policy in graph.policies.items()} == {
        "a": "a", "b": "b", "reference:a": "a", "reference:b": "b",
    }  # fmt: skip
    graph = graph_of({"a": Teacher("a", view=own, reference=Teacher("org/base", view=own))})
    assert graph.references["reference:a"].template == "reference:a"
    assert all(weights.has_own_template for weights in graph.weights)


@pytest.mark.parametrize("view", [{"tempalte": "own"}, {"template": "mine"}, {"system": 3}])
def test_a_view_that_is_none_is_refused(view: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="view"):
        Teacher("a", view=view)  # type: ignore[arg-type]


# ---- What reads them


def test_the_engine_of_all_is_of_policies_on_ray_that_name_none() -> None:
    teachers = {"a": "a", "b": Teacher("b", engine="transformers"), "c": Teacher("c", on="resident")}
    graph = graph_of(teachers, "ray", reference="base", engine="vllm", quantization="fp8")
    assert {name: policy.home for name, policy in graph.policies.items()} == {
        "a": ("ray", "vllm", "fp8"),
        "b": ("ray", "transformers", None),
        "c": ("resident", "transformers", None),
        REFERENCE: ("ray", "vllm", "fp8"),
    }


def test_adapters_share_a_base_that_the_same_engine_reads() -> None:
    teachers = {"a": Teacher(adapter="a"), "b": Teacher(adapter="b", engine="transformers"), "c": Teacher(adapter="c")}
    graph = graph_of(teachers, "ray", reference="base", engine="vllm")
    assert {names: weights.engine for names, weights in shared(graph).items()} == {
        f"a, c, {REFERENCE}": "vllm",
        "b": "transformers",
    }


@pytest.mark.parametrize(
    ("teacher", "fact"),
    [
        (Teacher("a", engine="vllm"), "on: resident"),
        (Teacher("a", on="ray", quantization="fp8"), "engine = transformers"),
        (Teacher("a", on="ray", engine="transformers", quantization="fp8"), "engine = transformers"),
    ],
)
def test_an_engine_without_a_process_and_a_rounding_without_an_engine_are_refused(teacher: Teacher, fact: str) -> None:
    with pytest.raises(ValueError, match=f"teacher 'a'.*{fact}"):
        graph_of({"a": teacher})
