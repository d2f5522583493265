"""Which settings decide what a student learns. The others say where, how and with which seed it is trained."""

from dataclasses import fields

from transformers import TrainingArguments

from trustmopd.recipe.rules import FLAT, PARTS
from trustmopd.training.config import TrustMOPDConfig

#: How rollouts are sampled and scored. A calibration depends on these, and a resumed run must keep them.
SAMPLING = (
    "num_candidates",
    "max_completion_length",
    "distillation_temperature",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "max_prompt_length",
    "prompt_truncation",
    "generation_kwargs",
    "chat_template_kwargs",
)
#: What the student is taught, and in which order. A resumed run must keep these.
LESSONS = (
    *PARTS,
    *SAMPLING,
    "seed",
    "shuffle_dataset",
    "global_batch_size",
    "num_generations",
    "optim",
    "mask_reasoning",
)
#: Optimizer and scheduler restore these from a checkpoint; `resuming.apply_changes` applies new values.
STORED = (
    "learning_rate",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "optim_args",
)
#: Other settings that may change when a run is resumed. The run warns of a change.
TOLD = (
    *("max_steps", "num_train_epochs", "max_grad_norm", "bf16", "fp16"),
    *("teacher_dtype", "teacher_quantization", "use_vllm"),
)

#: Further fields of transformers that change what is learnt. Most others are about logging, saving and devices.
_OF_TRANSFORMERS = (
    *("dataloader_drop_last", "ignore_data_skip", "label_smoothing_factor", "load_best_model_at_end"),
    *("neftune_noise_alpha", "optim_target_modules", "tf32", "train_sampling_strategy", "use_liger_kernel"),
)
#: Fields of TRL and our own that do not. A new field counts as a change until it is listed here.
_HOUSEKEEPING = (
    *("allow_template_mismatch", "calibration_path", "record_allocation_every", "run_dir", "teacher_placement"),
    *("ray_address", "ray_timeout", "teacher_engine", "rollouts", "watch", *FLAT.values()),
    *("max_tokens_per_micro_batch", "answers_on_device_gib", "rollout_timeout", "logprob_gap_limit", "guard"),
    *("log_completions", "log_unique_prompts", "num_completions_to_print", "teacher_model_name_or_path"),
    *("vllm_enable_sleep_mode", "vllm_gpu_memory_utilization", "vllm_group_port", "vllm_mode", "vllm_model_impl"),
    *("vllm_server_base_url", "vllm_server_host", "vllm_server_port", "vllm_server_timeout"),
    *("vllm_tensor_parallel_size", "vllm_max_model_length"),
)


def experiment_fields(*, has_dropout: bool) -> list[str]:
    """The fields that make two runs different experiments, not two seeds of one experiment. `has_dropout`: 0.1.0 had
    another default for `disable_dropout`, which changes nothing for a student that has none."""
    named = {*LESSONS, *STORED, *TOLD, *_OF_TRANSFORMERS} - {"seed"}
    aside = {field.name for field in fields(TrainingArguments)} | {*_HOUSEKEEPING}
    aside |= set() if has_dropout else {"disable_dropout"}
    return [field.name for field in fields(TrustMOPDConfig) if field.name in named or field.name not in aside]
