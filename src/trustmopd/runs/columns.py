"""The columns of a file of token records, one row for each response token, and the groups that metrics go by."""

#: The file's metadata: zlib of a JSON with the texts of token ids and the prompts.
METADATA = b"trustmopd"
STUDENT, REFERENCE = "student", "reference"
#: Columns whose values repeat from row to row. `rollout` is the prompt's dataset row; `sample` numbers the responses to
#: one prompt, where there are several.
REPEATED = (
    *("step", "rollout", "sample", "prompt_id", "domain", "capabilities"),
    *("position", "token_id", "token_text", "top_ids"),
)


#: Metrics by label, and by the teacher with the largest weight; prompts whose label names no teacher, or tokens that no
#: teacher leads.
GROUPS, OTHERS = ("domain", "leader"), "others"


def weight(teacher: str) -> str:
    return f"weight_{teacher}"


def score(teacher: str) -> str:
    """Raw: to be divided by mu."""
    return f"score_{teacher}"


def opinion(policy: str) -> tuple[str, str]:
    """Log-probabilities of the likeliest candidates, and the probability of the others, by student, reference or
    teacher."""
    if policy in (STUDENT, REFERENCE):
        return f"{policy}_logp", f"{policy}_rest"
    return f"logp_{policy}", f"rest_{policy}"


def own_reference(teacher: str) -> tuple[str, str]:
    """The same of the policy that a teacher is measured from, where teachers have references of their own."""
    return f"{REFERENCE}_logp_{teacher}", f"{REFERENCE}_rest_{teacher}"
