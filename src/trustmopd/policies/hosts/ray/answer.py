"""What a policy elsewhere thinks of a batch: the hidden states stay with it; candidates go there, logits come back."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trustmopd.policies.hosts.ray.actor import Question
from trustmopd.policies.hosts.ray.host import RayHost
from trustmopd.policies.hosts.ray.outbox import Outbox
from trustmopd.policies.pool import Timer

#: A row, and where its tokens begin and end among the candidates.
Span = tuple[int, int, int]


class RemoteAnswer:
    """`questions` are by replica. `tokens` counts the response tokens of every row."""

    def __init__(
        self,
        name: str,
        host: RayHost,
        questions: Mapping[int, Question],
        tokens: Sequence[int],
        outbox: Outbox,
        timer: Timer,
    ):
        self._name, self._host, self._tokens, self._outbox, self._timer = name, host, tokens, outbox, timer
        self._questions = {replica: each for replica, each in questions.items() if name in each.rows}
        self._replica = {row: replica for replica, each in self._questions.items() for row in each.rows[name]}
        self._expected: tuple[list[int], Tensor, dict[int, _Request]] | None = None

    @property
    def rows(self) -> frozenset[int]:
        return frozenset(self._replica)

    def expect(self, rows: Sequence[int], ids: Int[Tensor, "N C"]) -> None:
        if strangers := [row for row in rows if row not in self._replica]:
            raise LookupError(f"'{self._name}' was not asked about row {strangers[0]}, or its answer was released.")
        spans: dict[int, list[Span]] = {}
        start = 0
        for row in rows:
            end = start + self._tokens[row]
            if end > start:
                spans.setdefault(self._replica[row], []).append((row, start, end))
            start = end
        requests = {replica: _Request(self, replica, ids, mine) for replica, mine in spans.items()}
        self._expected = list(rows), ids, requests

    def logits_at(self, rows: Sequence[int], ids: Int[Tensor, "N C"]) -> Float[Tensor, "N C"]:
        if self._expected is None or self._expected[0] != list(rows) or self._expected[1] is not ids:
            self.expect(rows, ids)
        assert self._expected is not None
        requests, self._expected = self._expected[2], None
        logits = torch.empty(ids.shape, dtype=torch.float32)
        with self._timer("waiting"):
            for replica, request in requests.items():
                found = torch.tensor(self._host.reply(replica, self._name, request.send).logits)
                parts = found.split([end - start for _, start, end in request.spans])
                for (_, start, end), part in zip(request.spans, parts, strict=True):
                    logits[start:end] = part
        return logits.to(ids.device)

    def release(self) -> None:
        for replica, question in self._questions.items():
            # An actor that has died has nothing to release.
            self._host.replicas[replica].release.options(max_task_retries=0).remote(question.key)
        self._questions, self._replica, self._expected = {}, {}, None


class _Request:
    """Sent when it is made; `send` gives what it will bring, and sends it anew if that was lost."""

    def __init__(self, answer: RemoteAnswer, replica: int, ids: Tensor, spans: list[Span]):
        self.spans = spans
        host, name, question = answer._host, answer._name, answer._questions[replica]
        sent = answer._outbox.candidates(ids)
        host.usage[name].bytes += sum(end - start for _, start, end in spans) * ids.shape[1] * 4
        self._call = lambda: host.replicas[replica].logits_at.remote(question, name, spans, sent)
        self._first: Any = self._call()

    def send(self) -> Any:
        first, self._first = self._first, None
        return self._call() if first is None else first
