"""Time by phase and peak memory of a whole training step: random weights in the SmolLM3-3B shape, the real trainer.

    python benchmarks/bench_step.py                                     # trust and uniform, teachers resident
    python benchmarks/bench_step.py --allocations trust,uniform,random,single --placements resident,offload,adapters
    python benchmarks/bench_step.py --allocations uniform,trust,trl,trl-shared --rounds 2
    python benchmarks/bench_step.py --shape tiny --responses 8 --tokens 32 --device cpu     # does it run at all

Rollouts are given (random tokens, none of them the last): their time is the same for every rule and has a benchmark of
its own, bench_rollouts.py. `trl` is the loss of TRL's DistillationTrainer, called once for each of the three teachers;
`trl-shared` spares it the repeated forwards: its divergence alone, on the hidden states that our trainer would use.
`adapters` trains a LoRA student; teachers are adapters over its base, which is the reference. No calibration. Each case
warms up one step, then counts `--steps`; cases take turns, `--rounds` times; medians are shown. `step` is wall clock,
optimizer included.
"""

import gc
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from record import append, known, number, versions
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    SmolLM3Config,
    TrainerCallback,
)
from transformers.trainer_callback import PrinterCallback
from trl import DistillationTrainer
from trl.trainer.distillation_trainer import _chunked_divergence_loss

from trustmopd import Teacher, TrustMOPDConfig, TrustMOPDTrainer
from trustmopd.policies import TeacherPool
from trustmopd.policies.backbone import backbone_of, last_hidden_states
from trustmopd.training.step import batch_of

RESULTS = Path(__file__).parent / "results" / "step.csv"
PHASES = ("student", "teachers", "reference", "backward")
#: hidden, layers, heads, key-value heads, intermediate, vocabulary
SHAPES = {
    "smollm3-3b": (2048, 36, 16, 4, 11008, 128256),
    "smollm3-3b-own": (2048, 36, 16, 4, 11008, 128256),  # "own": SmolLM3's own architecture; the others are Llamas
    "smollm2-135m": (576, 30, 9, 3, 1536, 49152),
    "tiny": (64, 2, 4, 2, 128, 1024),
    "small": (128, 2, 4, 2, 256, 1024),  # heads of 32, which vLLM's CPU kernels want
    "small-own": (128, 2, 4, 2, 256, 1024),
}
PROMPT = 128
RANK = 16
WARM_UP = 1
NAMES = ("math", "code", "if")
RULES = ("trust", "uniform", "random", "single")
PLACEMENTS = ("resident", "offload", "adapters")


@dataclass(frozen=True)
class Case:
    """One step. The fields are columns of the results file, in its order."""

    device: str
    shape: str
    allocation: str
    placement: str
    responses: int
    tokens: int
    micro_batch: int
    candidates: int


class GivenRollouts(TrustMOPDTrainer):
    """Everything of a step but the sampling."""

    def _generate_single_turn(self, prompt_ids: list, *args: Any, **kwargs: Any) -> list[list[int]]:
        generator = torch.Generator().manual_seed(self.state.global_step)
        shape = (len(prompt_ids), self.args.max_completion_length)
        return torch.randint(4, self.identity.vocab_size, shape, generator=generator).tolist()


class TRLLoss(GivenRollouts):
    """TRL's loss as it is, teacher by teacher: each call has the student and one teacher read the batch."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.context = replace(self.context, pool=TeacherPool({}, {}))  # TRL asks the teachers itself

    def _compute_loss(self, student: Any, inputs: dict[str, Any], num_items_in_batch: Any) -> tuple:
        losses = []
        for name in self.pool.teachers:
            self.teacher_model = self.pool.members[name].host.model
            loss, *rest = DistillationTrainer._compute_loss(self, student, inputs, num_items_in_batch)
            losses.append(loss)
        return torch.stack(losses).mean(), *rest


class SharedTRLLoss(GivenRollouts):
    """TRL's divergence over the whole vocabulary, teacher by teacher, from the hidden states that we share."""

    def _compute_loss(self, student: Any, inputs: dict[str, Any], num_items_in_batch: Any) -> tuple:
        batch = batch_of(inputs)
        with self.context.clock("student"):
            width = batch.mask.shape[1]
            hidden = last_hidden_states(backbone_of(student), *batch.sequences)[:, -width - 1 : -1]
            head, loss = student.get_output_embeddings().weight, hidden.new_zeros(())
            for name in self.pool.teachers:
                states = torch.stack([batch.answers[name]._states[row] for row in batch.asked])
                divergence, entropy, count = _chunked_divergence_loss(
                    hidden, states, head, self.pool.members[name].head.weight, batch.mask, beta=1.0
                )
                loss = loss + divergence / len(self.pool.teachers)
        return loss, entropy.detach(), count


TRAINERS = {"trl": TRLLoss, "trl-shared": SharedTRLLoss}


def tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Words t0, t1, … so that every row of the head is a token."""
    core = Tokenizer(models.WordLevel({f"t{i}": i for i in range(vocab_size)}, unk_token="t3"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="t0",
        bos_token="t1",
        eos_token="t2",
        unk_token="t3",
        padding_side="left",
        chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
    )


def model(case: Case, seed: int) -> PreTrainedModel:
    hidden, layers, heads, kv_heads, intermediate, vocab = SHAPES[case.shape]
    torch.manual_seed(0)  # relatives: the same weights, of which the last norm is moved
    config = (SmolLM3Config if case.shape.endswith("-own") else LlamaConfig)(
        vocab_size=vocab,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        max_position_embeddings=16384,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        dtype=torch.bfloat16,
    )
    with torch.device(case.device):
        made = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    made.config.architectures = [type(made).__name__]  # as saving its weights would, which vLLM reads
    with torch.no_grad():
        made.model.norm.weight.add_(0.05 * torch.randn(hidden, device=case.device, dtype=torch.bfloat16), alpha=seed)
    return made


def trainer(
    case: Case,
    steps: int,
    folder: Path,
    *,
    kind: type[TrustMOPDTrainer] | None = None,
    student_dtype: torch.dtype = torch.bfloat16,
) -> TrustMOPDTrainer:
    student = model(case, 0)
    if student_dtype != student.dtype:  # to a wider one: a cast to bfloat16 would round the rotary frequencies as well
        student = student.to(student_dtype)
    teachers: dict[str, Any] = {}
    lora = LoraConfig(r=RANK, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM")
    if case.placement == "adapters":
        adapted = get_peft_model(model(case, 0), lora)
        for name in NAMES:
            for key, parameter in adapted.named_parameters():
                if "lora_B" in key:
                    torch.nn.init.normal_(parameter, std=0.01)
            adapted.save_pretrained(folder / name)
            teachers[name] = Teacher(adapter=str(folder / name))
        del adapted
    else:
        teachers = {name: model(case, index + 1) for index, name in enumerate(NAMES)}
    rule = "uniform" if case.allocation in TRAINERS else case.allocation
    args = TrustMOPDConfig(
        output_dir=str(folder / "run"),
        allocation=rule,
        single_teacher="math" if rule == "single" else None,
        calibrated=False,  # the same work at a step, without the batches before it
        num_candidates=case.candidates,
        global_batch_size=case.responses,
        per_device_train_batch_size=case.micro_batch,
        max_completion_length=case.tokens,
        teacher_placement="offload" if case.placement == "offload" else "resident",
        max_steps=WARM_UP + steps,
        gradient_checkpointing=True,
        bf16=True,
        use_cpu=case.device == "cpu",
        save_strategy="no",
        disable_tqdm=True,
    )
    words = " ".join(f"t{i}" for i in range(4, 4 + PROMPT))
    prompts = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": words}]] * ((WARM_UP + steps) * case.responses)}
    )
    made = (kind or TRAINERS.get(case.allocation, GivenRollouts))(
        student,
        teachers,
        args=args,
        train_dataset=prompts,
        processing_class=tokenizer(SHAPES[case.shape][-1]),
        peft_config=lora if case.placement == "adapters" else None,
    )
    made.remove_callback(PrinterCallback)
    return made


class WallClock(TrainerCallback):
    """Seconds of each whole step, and the memory that it needed at most."""

    def __init__(self, device: str):
        self.cuda = device == "cuda"
        self.seconds: list[float] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        self.began = self.now()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(self.now() - self.began)

    def now(self) -> float:
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


def measure(case: Case, steps: int) -> list[dict[str, float]]:
    """Of each step after the warm-up: seconds by phase, its wall clock, and its peak memory."""
    clock = WallClock(case.device)
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(case, steps, Path(folder))
        made.add_callback(clock)
        made.train()
        lines = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    del made
    gc.collect()
    if case.device == "cuda":
        torch.cuda.empty_cache()
    logged = [line for line in lines if "memory/peak_gib" in line]
    return [
        {
            **{phase: line.get(f"seconds/{phase}", 0.0) for phase in PHASES},
            "step": seconds,
            "peak_gib": line["memory/peak_gib"],
        }
        for line, seconds in zip(logged, clock.seconds, strict=True)
    ][WARM_UP:]


def main(
    shape: Annotated[str, typer.Option(help=f"Model shape: {', '.join(SHAPES)}.")] = "smollm3-3b",
    allocations: Annotated[str, typer.Option(help="Rules to compare; `trl` is TRL's loss.")] = "uniform,trust",
    placements: Annotated[str, typer.Option(help="resident, offload, adapters.")] = "resident",
    responses: Annotated[int, typer.Option(help="Responses a step.")] = 64,
    tokens: Annotated[int, typer.Option(help="Tokens a response.")] = 1024,
    micro_batch: Annotated[int, typer.Option(help="Responses a micro-batch.")] = 4,
    candidates: Annotated[int, typer.Option(help="Candidates per token, C.")] = 128,
    steps: Annotated[int, typer.Option(help="Steps of each case that count, after one that does not.")] = 3,
    rounds: Annotated[int, typer.Option(help="How often the cases take turns.")] = 1,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    output: Annotated[Path, typer.Option(help="CSV file to append to.", show_default="results/step.csv")] = RESULTS,
) -> None:
    """Compare allocation rules and teacher placements on one whole training step."""
    cases = [
        Case(device, known("shape", shape, SHAPES)[0], rule, placement, responses, tokens, micro_batch, candidates)
        for placement in known("placement", placements, PLACEMENTS)
        for rule in known("allocation", allocations, [*RULES, *TRAINERS])
        if not (rule in TRAINERS and placement != "resident")
    ]
    found: dict[Case, list[dict[str, float]]] = {case: [] for case in cases}
    for case in cases * rounds:
        found[case] += measure(case, steps)
        print(case.placement, case.allocation, *(f"{step['step']:.3f}" for step in found[case]), flush=True)
    table = Table("placement", "allocation", *(f"{phase} s" for phase in PHASES), "step s", "peak GiB")
    for case, taken in found.items():
        medians = {name: statistics.median(step[name] for step in taken) for name in taken[0]}
        seconds = {f"{phase}_seconds": number(medians[phase], 3) for phase in (*PHASES, "step")}
        peak = number(medians["peak_gib"], 2)
        table.add_row(case.placement, case.allocation, *seconds.values(), peak)
        append([{**asdict(case), **seconds, "peak_gib": peak, **versions(device)}], output)
    Console().print(table)
    print(f"{len(cases)} rows appended to {output}")


if __name__ == "__main__":
    typer.run(main)
