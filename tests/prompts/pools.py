"""Small pools in the schemas that upstream datasets have, and configs over them."""

import json
import random

import yaml

CHECKERS = ["paragraphs:paragraphs", "length_constraints:number_words", "detectable_format:title"]


def write_jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def text(rng, low, high, tag):
    """So many words that no two texts share a 5-gram."""
    return " ".join([tag, *(f"{tag}{rng.randrange(10**6)}" for _ in range(rng.randint(low, high) - 1))])


def mathematics(count, seed=0, low=5, high=90):
    rng = random.Random(f"math{seed}")
    return [{"question": text(rng, low, high, f"m{i}"), "final_answer": "1"} for i in range(count)]


def code(count, seed=0, low=5, high=90):
    """KodCode's columns; every tenth row is of a subset that is left out."""
    rng = random.Random(f"code{seed}")
    return [
        {
            "question_id": f"Algorithm_{i}",
            "subset": "Prefill" if i % 10 == 9 else ("Algorithm", "Data_Structure")[i % 2],
            "question": text(rng, low, high, f"c{i}"),
            "metadata": {"original_instruction": text(rng, 8, 12, f"p{i}") if i % 3 else ""},
        }
        for i in range(count)
    ]


def instructions(count, seed=0, low=10, high=90):
    """Tülu's columns: one, two or three constraints."""
    rng = random.Random(f"if{seed}")
    return [
        {
            "id": f"personas_{i}",
            "prompt": text(rng, low, high, f"i{i}"),
            "constraints": rng.sample(["specific ending", "format:sections", "keywords", "length"], rng.randint(1, 3)),
        }
        for i in range(count)
    ]


def constrained(count, seed=0, low=5, high=60, category="math-if"):
    """Composed prompts: a problem, a block, its checkers, and arguments with the nulls that tables add."""
    rng = random.Random(f"{category}{seed}")
    rows = []
    for i in range(count):
        checkers = rng.choices(CHECKERS, k=rng.randint(1, 3))
        block = f"Please follow in reply {i}:\n" + "\n".join(
            f"- {checker} {rng.randint(2, 9)} éß" for checker in checkers
        )
        rows.append(
            {
                "category": category,
                "prompt": text(rng, low, high, f"{category.replace('-', '')}{i}") + "\n\n" + block,
                "constraint_block": block,
                "instruction_id_list": checkers,
                "kwargs": [{"N": rng.randint(1, 5), "relation": None} for _ in checkers],
            }
        )
    return rows


def small(folder, **changes):
    """A config over small pools of every kind, with changes such as categories={…}."""
    config = {
        "name": "small",
        "output": str(folder / "out"),
        "pools": {
            "math": {
                "path": write_jsonl(folder / "math.jsonl", mathematics(120)),
                "licence": "MIT",
                "columns": {"prompt": "question"},
            },
            "code": {
                "path": write_jsonl(folder / "code.jsonl", code(120)),
                "licence": "CC-BY-NC-4.0",
                "columns": {"prompt": "question", "id": "question_id", "parent": "metadata.original_instruction"},
                "where": {"subset": ["Algorithm", "Data_Structure"]},
            },
            "if": {
                "path": write_jsonl(folder / "if.jsonl", instructions(200)),
                "licence": "ODC-BY",
                "columns": {"prompt": "prompt", "id": "id", "checkers": "constraints"},
            },
            "blocks": {
                "path": write_jsonl(folder / "blocks.jsonl", constrained(30)),
                "licence": "CC0-1.0",
                "columns": {
                    "prompt": "prompt",
                    "checkers": "instruction_id_list",
                    "arguments": "kwargs",
                    "block": "constraint_block",
                },
            },
        },
        "categories": {
            "math": {"pool": "math", "count": 20, "capabilities": ["math"]},
            "code": {"pool": "code", "count": 15, "capabilities": ["code"]},
            "if": {"pool": "if", "count": 25, "capabilities": ["if"]},
            "math-if": {"pool": "math", "count": 30, "capabilities": ["math", "if"], "blocks": "blocks"},
            "math-code": {"pool": "code", "count": 10, "capabilities": ["math", "code"], "derivation": True},
        },
        "comparison": {
            "evaluation": {
                "path": write_jsonl(folder / "evaluation.jsonl", mathematics(120)[:7]),
                "columns": {"prompt": "question"},
            }
        },
        **changes,
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path
