"""Rows of scores that need no distillation: the initial student, each teacher, all of them routed, their average."""

INITIAL, ROUTED, AVERAGE = "initial", "routed-teachers", "parameter-average"
#: The prefix of a teacher's row.
TEACHER = "teacher-"
TITLES = {INITIAL: "initial student", ROUTED: "routed teachers", AVERAGE: "parameter average"}


def is_reference_row(name: str) -> bool:
    return name in TITLES or name.startswith(TEACHER)
