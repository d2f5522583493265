"""Teachers and references as records: what is none, and who is whose reference."""

import pytest

from trustmopd.policies import Teacher, as_teachers, resolve

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("teachers", [{}, ["math"], "math"])
def test_a_pool_of_nobody_is_refused(teachers):
    with pytest.raises(ValueError) as refusal:
        as_teachers(teachers)
    assert f"teachers = {teachers!r}" in str(refusal.value)


@pytest.mark.parametrize("name", ["", "a/b", "two words", "reference", 1])
def test_a_name_that_cannot_be_a_column_is_refused(name):
    with pytest.raises(ValueError) as refusal:
        as_teachers({name: "a"})
    assert repr(name) in str(refusal.value)


@pytest.mark.parametrize(
    ("teacher", "facts"),
    [
        (Teacher(), ["teacher 'code'", "`model`", "`adapter`"]),
        (Teacher("a", dtype="bf16"), ["teacher 'code'", "'bf16'"]),
        (Teacher("http://localhost:8000/v1"), ["teacher 'code'", "http://localhost:8000/v1", "engine: vllm"]),
        (Teacher("a", engine="sglang"), ["teacher 'code'", "'sglang'", "vllm"]),
        (Teacher("a", quantization="int3"), ["teacher 'code'", "'int3'", "fp8"]),
        (7, ["teacher 'code'", "int"]),
        (Teacher("a", reference=7), ["the reference of teacher 'code'", "int"]),
        (Teacher("a", reference=Teacher(adapter="b")), ["the reference of teacher 'code'", "'b'"]),
        (Teacher("a", reference=Teacher("b", reference="c")), ["the reference of teacher 'code'", "'c'"]),
    ],
)
def test_a_teacher_that_cannot_be_loaded_is_refused(teacher, facts):
    with pytest.raises(ValueError) as refusal:
        as_teachers({"code": teacher})
    assert [fact for fact in facts if fact not in str(refusal.value)] == [], refusal.value


def test_a_view_that_is_no_mapping_is_refused():
    with pytest.raises(ValueError, match="view: 'own'.*template"):
        Teacher("a", view="own")


def test_a_reference_that_is_only_an_adapter_is_refused():
    with pytest.raises(ValueError, match=r"the reference .*'lora'"):
        resolve({"math": "a"}, Teacher(adapter="lora"), "student")
