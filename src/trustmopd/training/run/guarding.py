"""The guard (`runs/guard.py`) reads each line of metrics, warns, and may end the run."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from trustmopd.runs.guard import STOP, Alarm, Guard
from trustmopd.util.messages import Interrupted

logger = logging.getLogger(__name__)


class Guarding(TrainerCallback):
    """Comes before trackers, so that an alarm is in the line that raised it, as `guard/<rule>`."""

    def __init__(self, setting: Any):
        self.guard = Guard(setting)
        self.stopped: Alarm | None = None
        self._saves = True

    def resume(self, log_history: Iterable[Mapping[str, Any]]) -> None:
        """What was said before is not said again."""
        self.guard.read(log_history)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        logs = given["logs"]
        for alarm in [*self.guard.see({"step": state.global_step, **logs})]:
            logs[f"guard/{alarm.rule.name}"] = alarm.value
            if state.is_world_process_zero:
                logger.warning("%s", alarm)
            if alarm.action == STOP:
                self.stopped = alarm
                control.should_training_stop = True
                control.should_save = self._saves = args.save_strategy != "no"

    def check(self) -> None:
        """After training: whether it ended before its time."""
        if self.stopped is not None:
            saved = "is saved. A resumed run is not stopped by the same rule again"
            raise Interrupted(
                f"{self.stopped}. The run was stopped, as guard.{self.stopped.rule.name} = stop asks for; step "
                f"{self.stopped.step} {saved if self._saves else 'is not saved: save_strategy = no'}."
            )
