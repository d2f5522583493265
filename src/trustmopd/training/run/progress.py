"""Progress in one line, of a bar or of each logged step. The run directory has all metrics."""

from typing import Any

from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerState
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.trainer_callback import PrinterCallback
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled


def show_progress(trainer: Any, description: str | None = "Distilling") -> None:
    """In place of what was shown before; None: not at all."""
    for before in (PrinterCallback, DEFAULT_PROGRESS_CALLBACK, Progress):
        trainer.remove_callback(before)
    if description is not None:
        trainer.add_callback(Progress(description, [*trainer.teachers]))


class Progress(TrainerCallback):
    """A bar with the loss and the teachers' weights; with `disable_tqdm` a line of them at each logged step."""

    def __init__(self, description: str, teachers: list[str]):
        self.description, self.teachers = description, teachers
        self.bar: tqdm | None = None  # until training begins: an evaluation logs too

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.others = is_progress_bar_enabled()
        disable_progress_bar()  # transformers would draw its own bar over ours at every checkpoint
        self.bar = tqdm(
            total=state.max_steps,
            initial=state.global_step,
            desc=self.description,
            unit="step",
            disable=args.disable_tqdm or not state.is_world_process_zero,
        )

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.bar is None:
            return
        if logs and "loss" in logs:
            weights = {name: f"{logs[f'weight/{name}']:.2f}" for name in self.teachers if f"weight/{name}" in logs}
            shown = {"loss": f"{logs['loss']:.4f}", **weights}
            self.bar.set_postfix(shown, refresh=False)
            if args.disable_tqdm and state.is_world_process_zero:
                told = ", ".join(f"{name} {value}" for name, value in shown.items())
                print(f"{self.description}, step {state.global_step} of {state.max_steps}: {told}", flush=True)
        self.bar.update(state.global_step - self.bar.n)  # for the last steps there may be only a summary

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.close()
        if self.others:
            enable_progress_bar()
