"""Token records: what every teacher thought at each token of a few rollouts, for figures and the token viewer."""

import hashlib
import json
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from trustmopd.method import Objective
from trustmopd.training.scoring import ScoredCandidates

#: Rollouts recorded at a step, and candidates kept at a token.
ROLLOUTS = 8
TOP = 16
#: Key of the metadata: the texts of the token ids in the table, and the prompts, as JSON; in a file, as zlib of it.
TEXTS = b"trustmopd"
#: Columns that repeat themselves; a dictionary of distinct floats would only be larger.
_REPEATED = ["step", "rollout", "prompt_id", "domain", "capabilities", "position", "token_id", "token_text", "top_ids"]


class TokenTexts(dict[int, str]):
    """The text of each token id, decoded when it is first asked for."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> str:
        self[token] = text = self._tokenizer.decode([token])
        return text


def chosen_rows(rows: Iterable[int], seed: int, step: int) -> set[int]:
    """A random sample of the step's dataset rows that does not depend on how they are spread over processes."""
    key = lambda row: hashlib.blake2b(f"{seed}/{step}/{row}".encode()).digest()  # noqa: E731
    return set(sorted(rows, key=key)[:ROLLOUTS])


def token_table(
    scored: ScoredCandidates,
    result: Objective,
    *,
    step: int,
    rows: Sequence[int],
    meta: Sequence[dict[str, Any]],
    keep: set[int],
    teachers: Sequence[str],
    texts: TokenTexts,
) -> list[pa.Table]:
    """One table per recorded rollout of the micro-batch, one row per response token. What has no row of its own, the
    texts of candidates and the prompt, goes into the table's metadata."""
    at = scored.at
    # The student's likeliest first, whatever order the candidates came in.
    top = at.student_logp.topk(min(TOP, at.student_logp.shape[-1]), dim=-1)
    student_logp = at.student_logp.detach()
    opinions = {("student_logp", "student_rest"): student_logp}
    if at.reference_logp is not None:
        opinions["reference_logp", "reference_rest"] = at.reference_logp
    opinions |= {(f"logp_{name}", f"rest_{name}"): at.teacher_logp[k] for k, name in enumerate(teachers)}
    tables = []
    for b, row in enumerate(rows):
        valid = at.mask[b] != 0
        if row not in keep or not bool(valid.any()):
            continue
        token_ids = at.sampled_ids[b][valid].tolist()
        count = len(token_ids)
        columns: dict[str, Any] = {
            "step": pa.array([step] * count, pa.int32()),
            "rollout": pa.array([row] * count, pa.int64()),
            "prompt_id": pa.array([meta[b]["id"]] * count, pa.string()),
            "domain": pa.array([meta[b]["domain"]] * count, pa.string()),
            "capabilities": pa.array([meta[b]["capabilities"]] * count, pa.list_(pa.string())),
            "position": pa.array(valid.nonzero().flatten().tolist(), pa.int32()),
            "token_id": pa.array(token_ids, pa.int32()),
            "token_text": pa.array([texts[token] for token in token_ids], pa.string()),
            "student_entropy": _floats(torch.special.entr(student_logp[b][valid].exp()).sum(dim=-1)),
            "student_mass": _floats(scored.student_mass[b][valid]),
            "degenerate": pa.array(result.degenerate[b][valid].tolist(), pa.bool_()),
        }
        for k, name in enumerate(teachers):
            if result.scores is not None:
                columns[f"score_{name}"] = _floats(result.scores[k, b][valid])
            columns[f"weight_{name}"] = _floats(result.weights[k, b][valid])
        picked = top.indices[b][valid]
        top_ids = at.candidate_ids[b][valid].gather(-1, picked)
        columns["top_ids"] = _lists(top_ids, np.int32)
        for (logp_column, rest_column), logp in opinions.items():
            kept = logp[b][valid].gather(-1, picked)
            columns[logp_column] = _lists(kept, np.float16)
            columns[rest_column] = _array((1 - kept.exp().sum(dim=-1)).clamp_min(0), np.float16)
        known = {token: texts[token] for token in top_ids.unique().tolist()}
        spoken = {"texts": known, "prompts": {meta[b]["id"]: meta[b]["prompt"]}}
        tables.append(pa.table(columns).replace_schema_metadata({TEXTS: json.dumps(spoken)}))
    return tables


def write_records(path: Path, tables: Sequence[pa.Table]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    spoken: dict[str, dict[str, Any]] = {"texts": {}, "prompts": {}}
    for table in tables:
        for kind, entries in json.loads(table.schema.metadata[TEXTS]).items():
            spoken[kind] |= entries
    table = pa.concat_tables(tables).sort_by([("rollout", "ascending"), ("position", "ascending")])
    partial = path.with_name(f".{path.name}.partial")
    table = table.replace_schema_metadata({TEXTS: zlib.compress(json.dumps(spoken).encode())})
    pq.write_table(table, partial, compression="zstd", use_dictionary=_REPEATED)
    partial.replace(path)


def _array(values: Tensor, dtype: type) -> pa.Array:
    return pa.array(values.cpu().numpy().astype(dtype))


def _floats(values: Tensor) -> pa.Array:
    return _array(values, np.float32)


def _lists(values: Tensor, dtype: type) -> pa.Array:
    ends = np.arange(0, values.numel() + 1, values.shape[-1], dtype=np.int32)
    return pa.ListArray.from_arrays(ends, _array(values.flatten(), dtype))
