"""What a run's configuration says about the experiment: the name of its method, and the rest that matters."""

from collections.abc import Mapping
from typing import Any

from trustmopd.rules import DISPLACEMENT, RULES, SCORES, TRUST, UNSCORED

#: Fields that make no other experiment. Each is named, so that a field that a later release adds counts until somebody
#: has looked at it.
NO_DIFFERENCE = frozenset(
    {
        # Said by the name of the method, or refused by training.
        *("allocation", "single_teacher", "teacher_model_name_or_path"),
        # Seeds and places.
        *("seed", "data_seed", "output_dir", "run_dir", "calibration_path", "resume_from_checkpoint"),
        # How the same steps are computed.
        *("per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing", "use_cpu"),
        *("gradient_checkpointing_kwargs", "torch_compile", "torch_compile_backend", "torch_compile_mode"),
        *("torch_empty_cache_steps", "teacher_placement", "allow_template_mismatch", "local_rank", "deepspeed"),
        *("accelerator_config", "parallelism_config", "fsdp", "fsdp_config", "ddp_backend", "ddp_timeout"),
        *("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph"),
        *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers", "dataloader_in_order"),
        *("dataloader_prefetch_factor", "dataloader_multiprocessing_context"),
        *("vllm_mode", "vllm_model_impl", "vllm_enable_sleep_mode", "vllm_server_base_url", "vllm_server_host"),
        *("vllm_server_port", "vllm_server_timeout", "vllm_group_port", "vllm_gpu_memory_utilization"),
        *("vllm_tensor_parallel_size", "vllm_max_model_length", "rollout_timeout", "logprob_gap_limit"),
        # What is evaluated, logged and kept on the way.
        *("do_train", "do_eval", "do_predict", "eval_strategy", "eval_steps", "eval_delay", "eval_on_start"),
        *("eval_do_concat_batches", "eval_use_gather_object", "eval_accumulation_steps", "per_device_eval_batch_size"),
        *("logging_strategy", "logging_steps", "logging_first_step", "logging_nan_inf_filter", "log_on_each_node"),
        *("log_level", "log_level_replica", "log_completions", "log_unique_prompts", "num_completions_to_print"),
        *("include_num_input_tokens_seen", "include_for_metrics", "disable_tqdm", "skip_memory_metrics", "debug"),
        *("report_to", "run_name", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
        *("save_strategy", "save_steps", "save_only_model", "save_on_each_node", "save_total_limit"),
        *("push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push"),
        *("hub_revision", "record_allocation_every"),
    }
)
_OF_SCORES = {"score", "gamma", "granularity", "calibrated"}


def method_name(config: Mapping[str, Any]) -> str:
    """As the paper's tables call it: `trust`, or what differs from it."""
    rule = str(config.get("allocation", "unknown rule"))
    if rule != TRUST:
        return RULES[rule].title.format(teacher=config.get("single_teacher")) if rule in RULES else rule
    parts = []
    if (score := config.get("score", DISPLACEMENT)) != DISPLACEMENT:
        parts.append(SCORES[score].title if score in SCORES else str(score))
    if not config.get("calibrated", True):
        parts.append("without μ")
    if config.get("granularity", "token") != "token":
        parts.append("response-level")
    if (gamma := float(config.get("gamma", 7.0))) != 7.0:
        parts.append(f"γ = {gamma:.12g}")
    return ", ".join(parts) or RULES[TRUST].title


def setup_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a configuration by which two runs of one method are two experiments. What a rule does not use is
    left out, and so is what trust's own name says of its scores; a rule of the user's own is no more than a name."""
    rule = config.get("allocation")
    aside = set() if rule == "routed" else {"domain_column"}
    if rule in RULES:
        aside |= _OF_SCORES
    if rule in UNSCORED or not config.get("calibrated", True):
        aside.add("calibration_batches")
    return {name: value for name, value in config.items() if name not in NO_DIFFERENCE | aside}
