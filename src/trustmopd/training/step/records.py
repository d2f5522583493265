"""Token records: scores, weights and log-probabilities at each token of a few rollouts, for figures and the viewer."""

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from trustmopd.method import Objective
from trustmopd.runs import RunDirectory
from trustmopd.runs import columns as columns_of
from trustmopd.runs.columns import METADATA, REFERENCE, REPEATED, STUDENT
from trustmopd.training.step.batch import Rollout
from trustmopd.training.step.candidates import ScoredCandidates
from trustmopd.util.files import whole_file

#: Candidates kept per token.
TOP = 16


class TokenTexts(dict[int, str]):
    """The text of each token id, decoded when it is first needed. Decoders such as Llama's strip the leading space of
    the first token, so each token is decoded after another one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        super().__init__()
        self._tokenizer = tokenizer
        self._before = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self._prefix = self._decode(self._before)

    def __missing__(self, token: int) -> str:
        text = self._decode([*self._before, token])
        text = text.removeprefix(self._prefix) if text.startswith(self._prefix) else self._decode([token])
        # A tokenizer in Python may return half a surrogate pair, which cannot be written as UTF-8.
        self[token] = text = text.encode("utf-8", "replace").decode("utf-8")
        return text

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False))


class TokenRecorder:
    """Collects the tokens of a step's recorded rollouts from the micro-batches, and writes them when the step ends."""

    def __init__(self, run: RunDirectory, tokenizer: PreTrainedTokenizerBase, every: int):
        self.run = run
        self.every = every
        self._texts = TokenTexts(tokenizer)
        self._tables: list[pa.Table] = []

    def due(self, step: int) -> bool:
        """Whether this step is recorded; `step` counts those before it."""
        return self.every > 0 and step % self.every == 0

    def note(
        self, scored: ScoredCandidates, result: Objective, rollouts: Sequence[Rollout], teachers: Sequence[str]
    ) -> None:
        self._tables += token_table(scored, result, rollouts, teachers, self._texts)

    def finish(self, step: int, *, writes: bool) -> None:
        """After `step`: the process that `writes` saves the tables of all processes."""
        tables, self._tables = gather_object(self._tables), []
        if writes and tables:
            write_records(self.run.records(step), tables, step)


def token_table(
    scored: ScoredCandidates,
    result: Objective,
    rollouts: Sequence[Rollout],
    teachers: Sequence[str],
    texts: TokenTexts,
) -> list[pa.Table]:
    """The recorded rollouts of a micro-batch, one row per response token; an empty list if it has none. Prompts and the
    texts of candidates go into the table's metadata."""
    at = scored.at
    chosen = [b for b, rollout in enumerate(rollouts) if rollout.recorded and bool((at.mask[b] != 0).any())]
    if not chosen:
        return []
    valid = at.mask[chosen] != 0
    lengths = valid.sum(dim=1).tolist()

    def of_tokens(values: Tensor) -> Tensor:
        """``[B, T, …]`` → the response tokens of the chosen rollouts, concatenated."""
        return values.detach()[chosen][valid]

    def of_rollouts(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        """A value for each chosen rollout → one for each of its tokens."""
        return pa.array([value for value, length in zip(values, lengths, strict=True) for _ in range(length)], kind)

    kept = [rollouts[b] for b in chosen]
    token_ids = of_tokens(at.sampled_ids).tolist()
    student_logp = of_tokens(at.student_logp)
    columns: dict[str, Any] = {
        "rollout": of_rollouts([rollout.id.row for rollout in kept], pa.int64()),
        "sample": of_rollouts([rollout.id.sample for rollout in kept], pa.int32()),
        "prompt_id": of_rollouts([rollout.prompt_id for rollout in kept], pa.string()),
        "domain": of_rollouts([rollout.domain for rollout in kept], pa.string()),
        "capabilities": of_rollouts([rollout.capabilities for rollout in kept], pa.list_(pa.string())),
        "position": _array(valid.nonzero()[:, 1], np.int32),
        "token_id": pa.array(token_ids, pa.int32()),
        "token_text": pa.array([texts[token] for token in token_ids], pa.string()),
        "student_entropy": _array(torch.special.entr(student_logp.exp()).sum(dim=-1), np.float32),
        "student_mass": _array(of_tokens(scored.student_mass), np.float32),
        "degenerate": pa.array(of_tokens(result.degenerate).tolist(), pa.bool_()),
    }
    for k, name in enumerate(teachers):
        if result.scores is not None:
            columns[columns_of.score(name)] = _array(of_tokens(result.scores[k]), np.float32)
        columns[columns_of.weight(name)] = _array(of_tokens(result.weights[k]), np.float32)
    # Sorted by the student's probability; the candidates may come in another order.
    top = student_logp.topk(min(TOP, student_logp.shape[-1]), dim=-1).indices
    top_ids = of_tokens(at.candidate_ids).gather(-1, top)
    columns["top_ids"] = _lists(top_ids, np.int32)
    opinions = {columns_of.opinion(STUDENT): student_logp}
    if at.reference_logp is not None and at.reference_logp.ndim < at.teacher_logp.ndim:
        opinions[columns_of.opinion(REFERENCE)] = of_tokens(at.reference_logp)
    elif at.reference_logp is not None:
        opinions |= {columns_of.own_reference(n): of_tokens(at.reference_logp[k]) for k, n in enumerate(teachers)}
    opinions |= {columns_of.opinion(name): of_tokens(at.teacher_logp[k]) for k, name in enumerate(teachers)}
    for (logp_column, rest_column), logp in opinions.items():
        likeliest = logp.gather(-1, top)
        columns[logp_column] = _lists(likeliest, np.float16)
        columns[rest_column] = _array((1 - likeliest.exp().sum(dim=-1)).clamp_min(0), np.float16)
    spoken = {
        "texts": {token: texts[token] for token in top_ids.unique().tolist()},
        "prompts_by_row": {rollout.id.row: rollout.prompt for rollout in kept},
        "views": {rollout.id.row: rollout.shown for rollout in kept if rollout.shown},
    }
    return [pa.table(columns).replace_schema_metadata({METADATA: json.dumps(spoken)})]


def write_records(path: Path, tables: Sequence[pa.Table], step: int) -> None:
    spoken: dict[str, dict[str, Any]] = {}
    for table in tables:
        for kind, entries in json.loads(table.schema.metadata[METADATA]).items():
            spoken[kind] = spoken.get(kind, {}) | entries
    table = pa.concat_tables(tables).sort_by([(name, "ascending") for name in ("rollout", "sample", "position")])
    if not any(table["sample"].to_pylist()):  # one response to each prompt
        table = table.drop_columns("sample")
    table = table.add_column(0, "step", pa.array([step] * len(table), pa.int32()))
    table = table.replace_schema_metadata({METADATA: zlib.compress(json.dumps(spoken).encode())})
    # Checksums: otherwise a flipped bit in a page of floats would go unnoticed.
    with whole_file(path) as partial:
        pq.write_table(table, partial, compression="zstd", use_dictionary=list(REPEATED), write_page_checksum=True)


def _array(values: Tensor, dtype: type) -> pa.Array:
    return pa.array(values.cpu().numpy().astype(dtype))


def _lists(values: Tensor, dtype: type) -> pa.Array:
    ends = np.arange(0, values.numel() + 1, values.shape[-1], dtype=np.int32)
    return pa.ListArray.from_arrays(ends, _array(values.flatten(), dtype))
