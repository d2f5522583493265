"""What of vLLM's HTTP server the trainer asks, on a model that transformers runs: a real process to talk to, to kill
and to hang. Its weights are read from the checkpoint anew at every sync, where the trainer's stand-in for NCCL left
them.

    python http_server.py PORT CHECKPOINT [--mode raw_logprobs] [--hang-after N] [--without dev-mode|weight-transfer]
"""

import argparse
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("port", type=int)
parser.add_argument("checkpoint")
parser.add_argument("--mode", default="raw_logprobs")
parser.add_argument("--hang-after", type=int, default=10**9)
parser.add_argument("--without", choices=("dev-mode", "weight-transfer"))
given = parser.parse_args()
state: dict[str, Any] = {"asked": 0, "seeds": []}
one_at_a_time = threading.Lock()


def load() -> None:
    state["model"] = AutoModelForCausalLM.from_pretrained(given.checkpoint, dtype=torch.float32)


@torch.no_grad()
def complete(body: dict[str, Any]) -> dict[str, Any]:
    (prompt,) = body["prompt"]
    generator = torch.Generator().manual_seed(body["seed"])
    ids, logprobs = list(prompt), []
    while len(ids) - len(prompt) < body["max_tokens"]:
        logits = state["model"](torch.tensor([ids])).logits[0, -1]
        token = int(torch.multinomial((logits / body["temperature"]).softmax(-1), 1, generator=generator))
        ids.append(token)
        logprobs.append(float(logits.log_softmax(-1)[token]))
        if token == 2:
            break
    made = ids[len(prompt) :]
    told = {
        "tokens": [f"token_id:{token}" for token in made],
        "token_logprobs": logprobs,
        "top_logprobs": [None] * len(made),
    }
    return {"choices": [{"prompt_token_ids": prompt, "token_ids": made, "logprobs": told}]}


class Handler(BaseHTTPRequestHandler):
    def answer(self, payload: Any) -> None:
        text = json.dumps(payload).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/server_info" and given.without == "dev-mode":
            return self.send_error(404)
        transfer = None if given.without == "weight-transfer" else {}
        return self.answer(
            {
                "/health": {},
                "/v1/models": {"data": [{"id": "student"}]},
                "/server_info": {
                    "vllm_config": {"model_config": {"logprobs_mode": given.mode}, "weight_transfer_config": transfer}
                },
                "/seeds": {"seeds": state["seeds"]},
            }[path]
        )

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        if self.path == "/v1/completions":
            with one_at_a_time:
                state["asked"] += 1
                state["seeds"].append(body["seed"])
                if state["asked"] > given.hang_after:
                    time.sleep(600)
                self.answer(complete(body))
            return
        if self.path == "/reload":
            load()
        self.answer({"success": True})

    def log_message(self, *args: Any) -> None: ...


load()
ThreadingHTTPServer(("127.0.0.1", given.port), Handler).serve_forever()
