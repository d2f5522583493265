"""One progress line with an ETA. The run directory has the metrics of every step."""

from typing import Any

from tqdm.auto import tqdm
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled


def show_progress(trainer: Trainer, description: str) -> None:
    for noisy in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(noisy)
    trainer.add_callback(_Bar(description))


class _Bar(TrainerCallback):
    def __init__(self, description: str):
        self.description = description

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.others = is_progress_bar_enabled()
        disable_progress_bar()  # transformers would draw its own bar over ours at every checkpoint
        self.bar = tqdm(
            total=state.max_steps,
            initial=state.global_step,
            desc=self.description,
            unit="step",
            disable=not state.is_world_process_zero,
        )

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            weights = {key.removeprefix("weight/"): f"{logs[key]:.2f}" for key in logs if key.startswith("weight/")}
            self.bar.set_postfix(loss=f"{logs['loss']:.4f}", **weights, refresh=False)
        self.bar.update(state.global_step - self.bar.n)  # for the last steps there may be only a summary

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.bar.close()
        if self.others:
            enable_progress_bar()
