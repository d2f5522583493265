"""What a run's configuration says about the experiment: the name of its method, and the rest that matters."""

from collections.abc import Mapping
from typing import Any

SCORES = {
    "likelihood": "likelihood",
    "negative_entropy": "negative entropy",
    "teacher_student_kl": "teacher–student KL",
}
#: Fields of a configuration that the method's name says, that hold seeds or places, or that only say how and where
#: the same steps are computed, logged and kept.
_NO_DIFFERENCE = {
    *("allocation", "score", "gamma", "granularity", "calibrated", "single_teacher", "domain_column"),
    *("seed", "data_seed", "run_name", "project", "report_to", "disable_tqdm", "debug", "resume_from_checkpoint"),
    *("num_completions_to_print", "record_allocation_every", "teacher_placement", "use_cpu", "local_rank"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size"),
    *("accelerator_config", "deepspeed", "parallelism_config", "skip_memory_metrics", "allow_template_mismatch"),
}
_NO_DIFFERENCE_ENDS = ("_dir", "_path")
_NO_DIFFERENCE_STARTS = (
    *("log_", "logging_", "save_", "eval_", "do_", "hub_", "push_to_hub", "trackio_", "dataloader_", "ddp_", "fsdp"),
    *("torch_", "gradient_checkpointing", "vllm_", "include_"),
)


def method_name(config: Mapping[str, Any]) -> str:
    """As the paper's tables call it: `trust`, or what differs from it."""
    rule = str(config.get("allocation", "unknown rule"))
    if rule == "single":
        return f"single {config.get('single_teacher')}"
    if rule != "trust":
        return rule
    parts = []
    if (score := config.get("score", "displacement")) != "displacement":
        parts.append(SCORES.get(score, str(score)))
    if not config.get("calibrated", True):
        parts.append("without μ")
    if config.get("granularity", "token") != "token":
        parts.append("response-level")
    if (gamma := float(config.get("gamma", 7.0))) != 7.0:
        parts.append(f"γ = {gamma:g}")
    return ", ".join(parts) or "trust"


def setup_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a configuration by which two runs of one method are two experiments."""
    return {
        name: value
        for name, value in config.items()
        if name not in _NO_DIFFERENCE
        and not name.endswith(_NO_DIFFERENCE_ENDS)
        and not name.startswith(_NO_DIFFERENCE_STARTS)
    }
