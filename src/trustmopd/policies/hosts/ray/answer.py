"""What a policy elsewhere thinks of a batch: the hidden states stay with it; candidates go there, logits come back."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trustmopd.policies.answers import Top
from trustmopd.policies.hosts.ray.actor import Question, Span
from trustmopd.policies.hosts.ray.host import RayHost
from trustmopd.policies.pool import Timer


class RemoteAnswer:
    """`questions` are by replica. `tokens` counts the response tokens of every row; `send` puts candidates where all
    policies find them."""

    def __init__(
        self,
        name: str,
        host: RayHost,
        questions: Mapping[int, Question],
        tokens: Sequence[int],
        send: Callable[[Tensor], Any],
        timer: Timer,
    ):
        self._name, self._host, self._tokens, self._send, self._timer = name, host, tokens, send, timer
        self._questions = {replica: each for replica, each in questions.items() if name in each.rows}
        self._replica = {row: replica for replica, each in self._questions.items() for row in each.rows[name]}
        self._expected: tuple[list[int], Tensor, list[_Request]] | None = None

    @property
    def rows(self) -> frozenset[int]:
        return frozenset(self._replica)

    def expect(self, rows: Sequence[int], ids: Int[Tensor, "N C"]) -> None:
        sent = self._send(ids)
        requests = [_Request(self, replica, "logits_at", spans, sent) for replica, spans in self._spans(rows).items()]
        tokens = sum(end - start for request in requests for _, start, end in request.spans)
        self._host.usage[self._name].bytes += tokens * ids.shape[1] * 4
        self._expected = list(rows), ids, requests

    def logits_at(self, rows: Sequence[int], ids: Int[Tensor, "N C"]) -> Float[Tensor, "N C"]:
        if self._expected is None or self._expected[0] != list(rows) or self._expected[1] is not ids:
            self.expect(rows, ids)
        assert self._expected is not None
        requests, self._expected = self._expected[2], None
        logits = torch.empty(ids.shape, dtype=torch.float32)
        self._collect(requests, [logits])
        return logits.to(ids.device)

    def top(self, rows: Sequence[int], k: int) -> Top:
        requests = [_Request(self, replica, "top", spans, k) for replica, spans in self._spans(rows).items()]
        count = sum(self._tokens[row] for row in rows)
        found = Top(torch.empty(count, k, dtype=torch.long), torch.empty(count, k), torch.empty(count))
        self._collect(requests, found)
        return found

    def _spans(self, rows: Sequence[int]) -> dict[int, list[Span]]:
        """Of the rows that have tokens, by replica."""
        if strangers := [row for row in rows if row not in self._replica]:
            raise LookupError(f"'{self._name}' was not asked about row {strangers[0]}, or its answer was released.")
        spans: dict[int, list[Span]] = {}
        start = 0
        for row in rows:
            end = start + self._tokens[row]
            if end > start:
                spans.setdefault(self._replica[row], []).append((row, start, end))
            start = end
        return spans

    def _collect(self, requests: Sequence["_Request"], whole: Sequence[Tensor]) -> None:
        """Write what the replicas reply into the tensors of all rows."""
        with self._timer("waiting"):
            for request in requests:
                reply = self._host.reply(request.replica, self._name, request.send)
                sizes = [end - start for _, start, end in request.spans]
                for tensor, array in zip(whole, reply.arrays, strict=True):
                    for (_, start, end), part in zip(request.spans, torch.tensor(array).split(sizes), strict=True):
                        tensor[start:end] = part

    def release(self) -> None:
        for replica, question in self._questions.items():
            # An actor that has died has nothing to release.
            self._host.replicas[replica].release.options(max_task_retries=0).remote(question.key)
        self._questions, self._replica, self._expected = {}, {}, None


class _Request:
    """Sent when it is made; `send` gives what it will bring, and sends it anew if that was lost."""

    def __init__(self, answer: RemoteAnswer, replica: int, method: str, spans: list[Span], sent: Any):
        self.replica, self.spans = replica, spans
        actor, question = answer._host.replicas[replica], answer._questions[replica]
        self._call = lambda: getattr(actor, method).remote(question, answer._name, spans, sent)
        self._first: Any = self._call()

    def send(self) -> Any:
        first, self._first = self._first, None
        return self._call() if first is None else first
