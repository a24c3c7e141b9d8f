"""Options as TRL, Tunix, verl, Hugging Face's Trainer and others call them, and what they are called here."""

from __future__ import annotations

import difflib
from collections.abc import Collection

# Ours -> theirs. A script may have none of ours, or several, of which the first counts.
_NAMES = {
    ("run_dir",): "output_dir out_dir outdir out log_dir logdir logging_dir save_dir workdir work_dir exp_dir root_dir "
    "run run_name experiment_name exp_name name save_path "
    "checkpoint_dir ckpt_dir checkpoint_root_directory default_local_dir output_folder",
    ("model",): "model_name_or_path model_name model_id model_path pretrained hf_model hf_checkpoint base_model llm "
    "pretrained_model_name_or_path tokenizer tokenizer_path tokenizer_name actor policy_model",
    ("game",): "env env_name env_id environment environment_name task task_name scenario dataset dataset_name "
    "gym_id game_name",
    ("data",): "webshop_data alfworld_data data_dir data_path data_root dataset_path dataset_dir",
    ("learning_rate",): "lr actor_lr step_size peak_lr peak_learning_rate max_lr",
    ("group_size",): "num_generations n_generations rollout_n num_samples_per_prompt n_samples_per_prompt k "
    "num_return_sequences samples_per_prompt rollout.n n",
    ("num_groups",): "num_prompts prompts_per_batch num_prompts_per_step train_batch_size rollout_batch_size "
    "batch_size num_envs n_envs num_workers num_env_runners",
    ("micro_batch",): "per_device_train_batch_size per_device_batch_size micro_batch_size train_micro_batch_size "
    "ppo_micro_batch_size mini_batch_size minibatch_size gradient_accumulation_steps",
    ("batch",): "batch_size per_device_train_batch_size train_batch_size",
    ("iterations", "steps"): "num_train_steps train_steps total_steps num_steps n_steps num_train_epochs epochs "
    "num_epochs num_batches total_timesteps training_steps total_training_steps max_iterations n_iterations "
    "num_updates total_iterations stop_iters max_epochs training_iterations",
    ("updates_per_batch",): "num_iterations num_ppo_epochs ppo_epochs mu update_epochs",
    ("max_tokens", "line_tokens"): "max_completion_length max_new_tokens max_response_length response_length "
    "total_generation_steps max_tokens_to_generate max_length max_generation_length completion_length",
    ("context_tokens",): "max_prompt_length max_model_len n_ctx ctx_size context_length num_ctx max_context_length",
    ("max_turns",): "num_turns max_tool_calling_iterations max_env_steps episode_length max_episode_steps horizon",
    ("max_steps",): "max_episode_steps episode_length horizon max_env_steps",
    ("beta",): "kl_coef kl_beta kl_coeff kl_weight kl_loss_coef init_kl_coef",
    ("clip_low",): "epsilon clip_eps clip_epsilon clip_range cliprange clip_coef clip_ratio epsilon_low",
    ("clip_high",): "epsilon_high clip_ratio_high",
    ("temperature",): "temp sampling_temp rollout_temperature",
    ("lora_rank",): "lora_r r rank lora_dim",
    ("checkpoint_every",): "save_steps save_freq save_interval save_interval_steps save_every checkpoint_interval",
    ("eval_every",): "eval_strategy evaluation_strategy eval_steps eval_freq "
    "eval_interval eval_every_n_steps test_freq evaluation_interval",
    ("eval_episodes", "episodes", "tasks"): "num_eval_episodes n_eval_episodes eval_samples num_episodes n_episodes "
    "n_tasks num_tasks num_examples limit",
    ("parallel",): "num_envs n_envs num_workers num_parallel batch_size",
    ("wandb",): "wandb_project report_to use_wandb project_name track wandb_project_name log_with",
    ("resume",): "resume_from_checkpoint resume_from resume_mode continue_training load_checkpoint",
    ("overwrite",): "overwrite_output_dir force exist_ok",
    ("seed",): "random_seed rng_seed prng_seed data_seed",
    ("remat",): "gradient_checkpointing enable_gradient_checkpointing activation_checkpointing",
    ("base_url",): "endpoint api_base api_url openai_api_base server_url url host openai_base_url vllm_server_base_url",
    ("endpoint_model",): "served_model_name openai_model",
    ("api_key_env",): "api_key openai_api_key token",
    ("concurrency",): "max_concurrent max_concurrency max_connections num_concurrent n_parallel",
    ("adapter",): "lora lora_path adapter_path peft_path adapter_name_or_path lora_adapter peft_model",
    ("methods",): "method algorithm algo agent",
    ("watch",): "render render_mode visualize",
    ("mesh",): "num_processes_per_node tensor_parallel_size tp tp_size dp_size fsdp data_parallel_size num_devices "
    "gpus num_gpus n_gpus devices n_gpus_per_node "
    "num_gpus_per_learner num_learners",
    ("prompt",): "prompt_template prompt_style",
    ("dry_run",): "dryrun estimate_cost",
}  # fmt: skip
_DTYPE = {"bf16": "bfloat16", "fp16": "bfloat16", "half": "bfloat16", "fp32": "float32", "no_half": "float32"}
_DTYPE |= dict.fromkeys(("torch_dtype", "precision", "mixed_precision", "param_dtype", "weight_dtype"), "bfloat16")
_HARDWARE = ("device", "accelerator", "platform", "use_gpu", "cuda", "cpu", "no_cuda", "use_cpu", "tpu")
_NO_FILE = ("config", "config_file", "config_path", "cfg", "conf", "args_file", "recipe", "hparams")


def ours(name: str, options: Collection[str]) -> str:
    """What to write instead of an option that other libraries have, as a sentence; "" where nothing answers to it.

    Args:
      name: the unknown option, without dashes.
      options: those of the script.
    """
    name = name.lower().replace("-", "_")
    if name in options:
        return f"--{name} is written with underscores and small letters"
    if name in _NO_FILE:
        presets = "; --preset NAME sets many options at once" if "preset" in options else ""
        return f"options are given one by one, --name value, and no file of them is read{presets}"
    if name in _HARDWARE:
        return "JAX takes the best device that it sees; the variable JAX_PLATFORMS=cpu or cuda chooses"
    if name in _DTYPE and "dtype" in options:
        return f"here it is --dtype {_DTYPE[name]}"
    for names, foreign in _NAMES.items():
        candidates = [option for option in names if option in options]
        if candidates and name in foreign.split():
            return f"here it is --{candidates[0]}"
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.8)
    return f"the nearest is --{close[0]}" if close else ""
