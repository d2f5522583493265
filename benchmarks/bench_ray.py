"""Teachers on Ray: what travels for each token, and what a whole step costs.

    python benchmarks/bench_ray.py                          # bytes and milliseconds a token and teacher, on this CPU
    python benchmarks/bench_ray.py --steps 3                # and whole steps, resident against Ray
    python benchmarks/bench_ray.py --gpu                    # one H200: 135M and 3B, then eight teachers; 5 minutes

`candidates` sends the student's candidates to the policy and brings their logits back, as training does; `hidden`
brings the hidden states here, and applies the head here; `logits` brings all logits. The policy has read the tokens
before: only the answer is timed. Models are built where they live, from a shape and a seed.
Whole steps are those of bench_step.py, with all frozen policies in actors; with one GPU they share it. Each case has a
process of its own, which ends after LIMIT seconds at the latest; its row is written before the next one begins.
"""

import json
import multiprocessing
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from bench_step import NAMES, PHASES, PROMPT, SHAPES, WARM_UP, Case, GivenRollouts, WallClock, model, tokenizer
from datasets import Dataset
from record import append, known, number, versions
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import GenerationConfig, LlamaConfig
from transformers.trainer_callback import PrinterCallback

from trustmopd import Teacher, TrustMOPDConfig
from trustmopd.heads import Head
from trustmopd.policies import Rollouts, build_pool, resolve
from trustmopd.policies.hosts.ray import policies
from trustmopd.policies.hosts.ray.actor import PolicyActor, Question, Terms

RESULTS = Path(__file__).parent / "results"
WAYS = ("candidates", "hidden", "logits")
REPEATS = 7
#: Seconds of one case of whole steps, with starting and loading.
LIMIT = 150
#: Imported once for all cases.
IMPORTS = (
    "torch",
    "transformers",
    "datasets",
    "peft",
    "trl.trainer.distillation_trainer",
    "trustmopd.training.trainer",
)


class Built(nn.Module):
    """A model that is sent as its shape and seed, and built where it arrives."""

    def __init__(self, case: Case, seed: int):
        super().__init__()
        self.case, self.seed = case, seed
        hidden, layers, heads, kv_heads, intermediate, vocab = SHAPES[case.shape]
        self.config = LlamaConfig(
            vocab_size=vocab,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            intermediate_size=intermediate,
            max_position_embeddings=16384,
            eos_token_id=2,
        )
        self.generation_config = GenerationConfig(eos_token_id=2)

    def get_output_embeddings(self) -> None:
        """For the check that this is a model."""

    def __reduce__(self) -> tuple:
        return model, (self.case, self.seed)

    def __deepcopy__(self, memo: dict) -> "Built":
        return self


class Telling(PolicyActor):
    """Also gives away what it keeps: the ways that training does not use."""

    def hidden(self, question: Question, name: str) -> Any:
        states = torch.cat(list(self._kept[question.key][name]._states.values()))
        return states.cpu().view(torch.int16 if states.element_size() == 2 else torch.int32).numpy()

    @torch.no_grad()
    def logits(self, question: Question, name: str) -> Any:
        states = torch.cat(list(self._kept[question.key][name]._states.values()))
        return (states @ self._pool.members[name].head.weight.T).float().cpu().numpy()


@dataclass(frozen=True)
class Way:
    device: str
    shape: str
    way: str
    tokens: int
    candidates: int


def transport(case: Case, address: str | None) -> dict[str, tuple[float, float, float]]:
    """Bytes, milliseconds and error in a candidate's log-probability, by way."""
    import ray

    policies.PolicyActor = Telling
    found = {}
    vocab = SHAPES[case.shape][-1]
    here = model(case, 1)
    rows = list(range(case.responses))
    width = PROMPT + case.tokens
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, vocab, (case.responses, width), generator=generator)
    asked = Rollouts(ids, torch.ones_like(ids), torch.ones_like(ids[:, PROMPT:]), case.micro_batch)
    wanted = torch.randint(0, vocab, (case.responses * case.tokens, case.candidates), generator=generator)
    terms = Terms("bench", address, 600.0, torch.bfloat16, None, False, None, False, None)
    remote = policies.RayPolicies(terms, lambda decide: decide())
    graph = resolve({"math": Teacher(Built(case, 1), on="ray")}, None, here, with_reference=False)
    pool = build_pool(graph, here, device=torch.device("cpu"), dtype=torch.bfloat16, elsewhere=remote)
    answer = pool.ask(asked)["math"]
    (host,) = remote._hosts
    actor, question = host.replicas[0], answer._questions[0]
    ray.get(actor.read.remote(question))
    exact: Any = None
    for way in WAYS:
        taken, size = [], 0.0
        for _ in range(REPEATS):
            remote.take_usage()
            began = time.perf_counter()
            if way == "candidates":
                logits = answer.logits_at(rows, wanted)
            elif way == "hidden":
                sent = torch.tensor(ray.get(actor.hidden.remote(question, "math")))
                logits = Head.of(here).logits_of(sent.view(torch.bfloat16), wanted).float()
            else:
                sent = torch.from_numpy(ray.get(actor.logits.remote(question, "math")).copy())
                logits = sent.gather(1, wanted)
            taken.append(time.perf_counter() - began)
            size = remote.take_usage()["math"].bytes if way == "candidates" else sent.nbytes
        exact = logits if exact is None else exact
        error = (logits.log_softmax(-1) - exact.log_softmax(-1)).abs().max().item()
        tokens = len(wanted)
        found[way] = size / tokens, 1000 * statistics.median(taken) / tokens, error
    answer.release()
    remote.close()
    return found


def trainer(case: Case, teachers: int, steps: int, folder: Path) -> GivenRollouts:
    """As in bench_step.py, with any number of teachers; on Ray they are built there, and the reference too."""
    names = [*NAMES, *(f"teacher{n}" for n in range(teachers))][:teachers]
    on_ray = case.placement == "ray"
    shared = 1 if case.device == "cpu" else round(0.9 / (teachers + 1), 3)
    made_of = Built if on_ray else model
    place = {"on": "ray", "gpus": shared if case.device == "cuda" else 0} if on_ray else {}
    args = TrustMOPDConfig(
        output_dir=str(folder / "run"),
        calibrated=False,
        num_candidates=case.candidates,
        global_batch_size=case.responses,
        per_device_train_batch_size=case.micro_batch,
        max_completion_length=case.tokens,
        teacher_placement="resident" if on_ray else case.placement,
        max_steps=WARM_UP + steps,
        gradient_checkpointing=True,
        bf16=True,
        ray_timeout=LIMIT,
        use_cpu=case.device == "cpu",
        save_strategy="no",
        disable_tqdm=True,
    )
    words = " ".join(f"t{i}" for i in range(4, 4 + PROMPT))
    prompts = [[{"role": "user", "content": words}]] * ((WARM_UP + steps) * case.responses)
    made = GivenRollouts(
        model(case, 0),
        {name: Teacher(made_of(case, seed), **place) for seed, name in enumerate(names, 1)},
        Teacher(made_of(case, 0), **place),
        args=args,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer(SHAPES[case.shape][-1]),
    )
    made.remove_callback(PrinterCallback)
    return made


def whole_step(case: Case, teachers: int, steps: int) -> dict[str, float]:
    """Medians over the steps after the warm-up."""
    clock = WallClock(case.device)
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(case, teachers, steps, Path(folder))
        made.add_callback(clock)
        try:
            made.train()
        finally:
            made.pool.close()
        lines = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    logged = [line for line in lines if "memory/peak_gib" in line][WARM_UP:]
    phases = (*PHASES, "waiting")
    medians = {phase: statistics.median(line.get(f"seconds/{phase}", 0.0) for line in logged) for phase in phases}
    peak = max(line["memory/peak_gib"] for line in logged)
    return {**medians, "step": statistics.median(clock.seconds[WARM_UP:]), "peak_gib": peak}


def _send_whole_step(sender: Any, *what: Any) -> None:
    sender.send(whole_step(*what))


def apart(case: Case, teachers: int, steps: int) -> dict[str, float] | None:
    """`whole_step` in a process of its own; None if it failed, or took too long."""
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        dict.fromkeys([str(Path(__file__).parent), *filter(None, path)])
    )  # of actors
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(list(IMPORTS))
    receiver, sender = processes.Pipe(duplex=False)
    process = processes.Process(target=_send_whole_step, args=(sender, case, teachers, steps))
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(LIMIT) else None
    except EOFError:  # it has ended, and its error is on the screen
        return None
    finally:
        process.join(10)
        process.kill()


def main(
    shape: Annotated[str, typer.Option(help=f"Model shape: {', '.join(SHAPES)}.")] = "smollm2-135m",
    responses: Annotated[int, typer.Option(help="Responses a step.")] = 4,
    tokens: Annotated[int, typer.Option(help="Tokens a response.")] = 64,
    micro_batch: Annotated[int, typer.Option(help="Responses a micro-batch.")] = 4,
    candidates: Annotated[int, typer.Option(help="Candidates per token, C.")] = 128,
    steps: Annotated[int, typer.Option(help="Whole steps of each case, after a warm-up; 0: none.")] = 0,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; none: one is started.")] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="The cases for one large GPU instead of these.")] = False,
    output: Annotated[Path, typer.Option(help="Folder of ray.csv and ray-steps.csv.")] = RESULTS,
) -> None:
    """Compare what teachers on Ray send, and what they cost a step."""
    known("shape", shape, SHAPES)
    cpu = Case("cpu", shape, "trust", "ray", responses, tokens, micro_batch, candidates)
    if not gpu:
        _show_transport(cpu, address, output)
        cases = [(replace(cpu, placement=placement), 3) for placement in ("resident", "ray")] if steps else []
    else:
        steps = steps or 2
        one = Case("cuda", "smollm2-135m", "trust", "resident", 32, 1024, 4, candidates)
        three = replace(one, shape="smollm3-3b")
        cases = [(replace(each, placement=where), 3) for each in (one, three) for where in ("resident", "ray")]
        cases += [(replace(three, placement=where), 8) for where in ("ray", "offload")]
    timed = (*PHASES, "waiting", "step")
    table = Table("shape", "teachers", "placement", *(f"{phase} s" for phase in timed), "peak GiB")
    began = time.perf_counter()
    for place, (case, teachers) in enumerate(cases, 1):
        told = f"{place} of {len(cases)}: {case.shape}, {teachers} teachers, {case.placement}"
        print(f"{time.perf_counter() - began:5.0f} s  {told} …", flush=True)
        found = apart(case, teachers, steps)
        if found is None:
            print(f"{time.perf_counter() - began:5.0f} s  {told}: failed, or took over {LIMIT} s", flush=True)
            continue
        seconds = {f"{phase}_seconds": number(found[phase], 3) for phase in timed}
        peak = number(found["peak_gib"], 2)
        row = {**vars(case), "teachers": teachers, **seconds, "peak_gib": peak, **versions(case.device)}
        append([row], output / "ray-steps.csv")
        table.add_row(case.shape, str(teachers), case.placement, *seconds.values(), peak)
        print(f"{time.perf_counter() - began:5.0f} s  {told}: a step takes {found['step']:.3f} s", flush=True)
    if cases:
        Console().print(table)


def _show_transport(case: Case, address: str | None, output: Path) -> None:
    table = Table("way", "bytes a token", "ms a token", "error, nats")
    for way, (size, milliseconds, error) in transport(case, address).items():
        row = Way(case.device, case.shape, way, case.responses * case.tokens, case.candidates)
        told = {"bytes_per_token": number(size, 1), "ms_per_token": number(milliseconds, 4), "error": f"{error:.2e}"}
        table.add_row(way, *told.values())
        append([{**vars(row), **told, **versions(case.device)}], output / "ray.csv")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
