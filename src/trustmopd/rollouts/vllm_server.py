"""A vLLM server with GPUs of its own, asked over HTTP: TRL's client, with a time limit and no silent retries."""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from trl.generation.vllm_client import VLLMClient

from trustmopd.rollouts import RESUME, Completion, Params, seed_of
from trustmopd.util.messages import first_line

logger = logging.getLogger(__name__)
_AT_ONCE = 64
_MODE = "raw_logprobs"


class _Limited(HTTPAdapter):
    """`seconds` for every answer. TRL's own waits for ever, and retries a dead server for a minute."""

    def __init__(self, seconds: float) -> None:
        super().__init__(pool_maxsize=_AT_ONCE)
        self.seconds = seconds

    def send(self, *args: Any, **options: Any) -> Any:
        return super().send(*args, **options | {"timeout": options.get("timeout") or (10, self.seconds)})


class VLLMServer(VLLMClient):
    """Raises `ConnectionError`, naming the server, whenever it does not answer as it should."""

    def __init__(self, url: str, group_port: int, *, wait: float, limit: float) -> None:
        self.limit = limit
        super().__init__(base_url=url, group_port=group_port, connection_timeout=wait)
        mode = self.get_server_info()["model_config"]["logprobs_mode"]
        if mode != _MODE:
            raise ValueError(
                f"the vLLM server at {url} runs with --logprobs-mode {mode}: its log-probabilities cannot be compared "
                f"with the student's at temperature 1. Restart it with --logprobs-mode {_MODE}."
            )

    def check_server(self, total_timeout: float = 0.0, retry_interval: float = 2.0) -> None:
        """TRL calls this first."""
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, _Limited(self.limit))
        until, waits = time.monotonic() + total_timeout, False
        while True:
            try:
                answer = self.session.get(f"{self.base_url}/health", timeout=5)
                if answer.status_code == 200:
                    return
                why = f"status {answer.status_code}"
            except requests.RequestException as error:
                why = _why(error)
            if time.monotonic() >= until:
                raise ConnectionError(
                    f"no vLLM server is ready at {self.base_url} after {total_timeout:g} s ({why}). Start it (`vllm "
                    "serve`; docs/rollouts.md has the command), check its address (vllm_server_base_url, or "
                    "vllm_server_host and vllm_server_port), or raise vllm_server_timeout."
                )
            if not waits:
                logger.warning(
                    "No vLLM server is ready at %s yet (%s). Waiting for it, %g s at most (vllm_server_timeout).",
                    *(self.base_url, why, total_timeout),
                )
                waits = True
            time.sleep(retry_interval)

    def sample(self, prompt_ids: Sequence[list[int]], params: Params) -> list[Completion]:
        """One request per prompt: a request has one seed for all its prompts."""
        with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(prompt_ids))) as pool:
            return list(pool.map(lambda place: self._one(place, prompt_ids[place], params), range(len(prompt_ids))))

    def _one(self, place: int, ids: list[int], params: Params) -> Completion:
        seed = {} if params.draws is None else {"seed": seed_of([params.draws[place]])}
        made = self.generate(
            [ids],
            repetition_penalty=params.repetition_penalty,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p or 0.0,
            max_tokens=params.max_new_tokens,
            logprobs=0 if params.logprobs else None,
            generation_kwargs={**seed, **params.options},
        )
        (found,) = made["completion_ids"]
        logprobs = None if made["logprobs"] is None else [at[0] for at in made["logprobs"][0]]
        return Completion(found, len(found) >= params.max_new_tokens, logprobs)

    def _post(self, url: str, **kwargs: Any) -> dict:
        try:
            return super()._post(url, **kwargs)
        except Exception as error:  # TRL raises a bare Exception for a status that is not 200
            raise ConnectionError(
                f"the vLLM server at {self.base_url} does not answer {url.removeprefix(self.base_url)} "
                f"({_why(error)}). Restart the server; one that is slow and not dead needs a larger rollout_timeout. "
                f"{RESUME}"
            ) from error


def _why(error: Exception) -> str:
    if isinstance(error, requests.Timeout):
        return "no answer within the time limit"
    if isinstance(error, requests.ConnectionError):  # requests' own text is long, and ends in another error's
        return "nothing accepts a connection there"
    return first_line(error)
