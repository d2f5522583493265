"""vLLM as the engine of training: TRL's `VLLMGeneration`, with verified weights and a seed for every request.

Colocated, the engine lives in the training process; served, it has GPUs of its own behind HTTP. Before every sampling
the student's weights are put in, and compared.
"""

import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import trl.generation.vllm_generation as trls
from accelerate.utils import broadcast_object_list, gather_object, is_peft_model
from torch import Tensor, nn

from trustmopd.rollouts import RESUME, Completion, Params, reason
from trustmopd.rollouts.vllm_engine import quick_start, sample_from, sampling
from trustmopd.rollouts.weights import (
    Read,
    can_be_merged_apart,
    check_equal,
    kept_as_they_are,
    merged,
    repack_tied,
    reshard,
    trained_names,
)

logger = logging.getLogger(__name__)
_PROCESSES = "VLLM_ENABLE_V1_MULTIPROCESSING"


class VLLMRollouts(trls.VLLMGeneration):
    """`settings` are `VLLMGeneration`'s own; `dtype` is what the engine computes in, `limit` the most seconds that a
    sync, or the sampling of one batch, may take."""

    def __init__(self, *, dtype: torch.dtype, limit: float, **settings: Any) -> None:
        self.dtype = str(dtype).removeprefix("torch.")
        self.limit = limit
        self._kept: dict[str, list[Read]] | None = None
        super().__init__(**settings)

    # ---- Starting

    def _init_vllm(self) -> None:
        if self.mode == "server":
            return self._connect()
        engine = trls.LLM
        # TRL's log-probs are at the rollouts' temperature; the student's are not.
        ours = {"logprobs_mode": "raw_logprobs", "dtype": self.dtype, **quick_start()}
        trls.LLM = lambda **given: engine(**given | ours)
        before = os.environ.get(_PROCESSES)
        try:
            with rewritten_apart(self.model, lambda: self._runner.get_model()):
                super()._init_vllm()
        except (ValueError, RuntimeError, torch.OutOfMemoryError) as error:
            remedy = "Correct that, or set rollouts.engine = transformers."
            if memory := _memory(error):
                remedy = (
                    f"It was given vllm_gpu_memory_utilization = {self.gpu_memory_utilization:g} of the GPU for "
                    f"weights and cache of {self.max_num_seqs} sequences of {self.max_model_length} tokens. Change "
                    "that share, lower max_completion_length, or set vllm_enable_sleep_mode = True and "
                    "teacher_placement = 'offload'."
                )
            why = memory or reason(error)
            raise ValueError(f"vLLM does not start with {self.model.name_or_path} ({why}). {remedy}") from error
        finally:
            trls.LLM = engine
            if before is None:  # vLLM turned it off; an engine for evaluation shall have a process of its own
                os.environ.pop(_PROCESSES, None)

    def _connect(self) -> None:
        from trustmopd.rollouts.vllm_server import VLLMServer

        if self.accelerator.is_main_process:
            url = self.server_base_url or f"http://{self.server_host}:{self.server_port}"
            try:
                self.vllm_client = VLLMServer(url, self.group_port, wait=self.server_timeout, limit=self.limit)
                self.vllm_client.init_communicator(device=self.accelerator.device)
            except RuntimeError as error:  # TRL's: the server lacks a flag
                raise ConnectionError(f"{error} docs/rollouts.md has the whole command.") from error
        self.accelerator.wait_for_everyone()

    # ---- Weights

    def _iter_named_params(self) -> Iterator[tuple[str, Tensor]]:
        reshard(self.model)
        if is_peft_model(self.model) and can_be_merged_apart(self.model):
            return merged(self.model)
        return super()._iter_named_params()

    def sync_weights(self) -> None:
        """Load the student's weights into the engine, and check that they arrived."""
        if self.mode == "server":
            super().sync_weights()
            return
        if self.enable_sleep_mode:
            trls.empty_cache()
            self.llm.wake_up(tags=["weights"])
            self._llm_weights_sleeping = False
        self.push()
        self.llm.reset_prefix_cache()
        self.check_weights()

    @torch.no_grad()
    def push(self) -> None:
        # TRL writes into the parameters; an engine that repacks them after loading would keep the old ones.
        self._runner.reload_weights(weights_iterator=self._iter_named_params())
        repack_tied(self._runner.get_model())

    @torch.no_grad()
    def check_weights(self) -> None:
        if self._kept is None:
            shapes = {name: each.shape for name, each in self._iter_named_params()}
            self._kept = kept_as_they_are(self._runner.get_model(), shapes)
            if not self._kept.keys() & trained_names(self.model):
                logger.warning(
                    "vLLM keeps no tensor that is trained as the student has it (it joins q, k and v, and gate and "
                    "up), so a missed weight sync would show in rollout/logprob_gap_mean alone."
                )
        if self._kept:
            check_equal(self._kept, self._iter_named_params())

    @property
    def _runner(self) -> Any:
        return self.llm.llm_engine.model_executor.driver_worker.model_runner

    # ---- Sampling

    def sample(self, prompt_ids: Sequence[list[int]], params: Params) -> list[Completion]:
        with time_limit(
            self.limit + 60 * (self.mode == "server"),  # a server's own limit comes first, with a better message
            f"vLLM did not answer within rollout_timeout = {self.limit:g} s. The run ends here. If the engine is slow "
            f"and not stuck, raise rollout_timeout. {RESUME}",
        ):
            self.sync_weights()
            if self.structured_outputs_regex is not None:
                regex = {"structured_outputs": {"regex": self.structured_outputs_regex}}
                params = replace(params, options={**params.options, **regex})
            return self._served(prompt_ids, params) if self.mode == "server" else self._colocated(prompt_ids, params)

    def _colocated(self, prompt_ids: Sequence[list[int]], params: Params) -> list[Completion]:
        prompts, draws = list(prompt_ids), list(params.draws or [])
        first = 0
        if self.tensor_parallel_size > 1:  # the group's ranks sample each other's prompts too
            gathered: list[Any] = [None] * self.tensor_parallel_size
            torch.distributed.all_gather_object(gathered, (prompts, draws), group=self.tp_group)
            first = torch.distributed.get_rank(group=self.tp_group) * len(prompts)
            prompts, draws = ([each for part in gathered for each in part[kind]] for kind in (0, 1))
        if self.enable_sleep_mode:
            self.llm.wake_up(tags=["kv_cache"])
        context = self.llm.llm_engine.model_config.max_model_len
        with sampling(f"{RESUME} If this comes back, set rollouts.engine = transformers."):
            made = sample_from(self.llm, context, prompts, replace(params, draws=draws or None))
        if self.enable_sleep_mode:
            self.llm.sleep(level=2)
            self._llm_weights_sleeping = True
        return made[first : first + len(prompt_ids)]

    def _served(self, prompt_ids: Sequence[list[int]], params: Params) -> list[Completion]:
        """The first process asks for all; an error there is raised in all."""
        prompts, draws = gather_object(list(prompt_ids)), gather_object(list(params.draws or []))
        answer: list[Any] = [None]
        if self.accelerator.is_main_process:
            try:
                answer = [self.vllm_client.sample(prompts, replace(params, draws=draws or None))]
            except ConnectionError as error:
                answer = [str(error)]
        (made,) = broadcast_object_list(answer)
        if isinstance(made, str):
            raise ConnectionError(made)
        first = self.accelerator.process_index * len(prompt_ids)
        return made[first : first + len(prompt_ids)]


def _memory(error: Exception) -> str | None:
    """vLLM's own message, if memory is the reason. The name of the setting alone is none."""
    return next((line for line in str(error).splitlines() if re.search(r"\bmemory\b", line, re.IGNORECASE)), None)


@contextmanager
def rewritten_apart(student: nn.Module, started: Callable[[], nn.Module]) -> Iterator[None]:
    """Where vLLM has no code of its own for an architecture (SmolLM3 is one), it runs transformers' classes, and
    rewrites the outermost one for its compiler: base classes, `__init__`, `__call__`. Every other model of that class,
    student and teachers, would then fail at its first forward. So a class of the student's that gets new base classes
    inside is put back. What was changed in it goes to a subclass, for the modules of the `started` engine."""
    classes = {each for module in student.modules() for each in type(module).__mro__ if issubclass(each, nn.Module)}
    before = {each: (each.__bases__, dict(vars(each))) for each in classes}
    try:
        yield
        moved = _restore(before)
        for module in started().modules() if moved else ():
            if type(module) in moved:
                module.__class__ = moved[type(module)]
    finally:
        _restore(before)


def _restore(before: dict[type, tuple[tuple[type, ...], dict[str, Any]]]) -> dict[type, type]:
    """The classes as they were; and for each that was rewritten, a subclass as it was rewritten."""
    moved = {}
    for each, (bases, names) in before.items():
        if each.__bases__ == bases:
            continue
        added = [base for base in each.__bases__ if base not in bases]
        changed = {name: value for name, value in vars(each).items() if name not in names or value is not names[name]}
        each.__bases__ = bases
        for name in changed:
            if name in names:
                setattr(each, name, names[name])
            else:
                delattr(each, name)
        moved[each] = type(each)(each.__name__, (each, *added), {**changed, "__module__": each.__module__})
    return moved


@contextmanager
def time_limit(seconds: float, message: str) -> Iterator[None]:
    """Ends the process, with status 1 and `message`, if the block takes longer. An exception would have to wait for the
    kernel, or the collective call, that hangs. Files are written completely or not at all, so nothing on disk is
    damaged."""

    def give_up() -> None:
        print(f"\n{message}", file=sys.stderr, flush=True)
        os._exit(1)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
