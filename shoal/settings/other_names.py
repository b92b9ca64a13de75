"""What other libraries call a setting or a system, so that a suggestion understands whoever comes from them."""

from __future__ import annotations

from collections.abc import Container, Mapping

SETTINGS: dict[str, tuple[str, ...]] = {  # field or option -> names in SB3, CleanRL, RLlib, Tianshou, Sample Factory
    "steps": (
        "timesteps_trainer", "n_env_steps", "max_train_steps_per_env", "max_env_steps", "max_env_step", "env_steps",
        "frames", "max_frames", "num_frames", "max_train_steps", "training_steps", "train_steps",
        "train_for_agent_steps", "total_timesteps", "total_steps", "num_timesteps", "n_timesteps", "timesteps",
        "max_timesteps", "max_steps", "total_env_steps", "num_env_steps", "train_for_env_steps", "stop_timesteps",
        "total_frames",
    ),
    "actors": (
        "n_cpu", "n_jobs", "max_num_workers", "num_workers", "n_workers", "workers", "num_actors", "n_actors",
        "num_env_runners", "num_rollout_workers", "num_processes", "num_cpus",
    ),
    "envs": (
        "num_envs_per_actor", "n_envs_per_actor", "env_num", "num_envs", "n_envs", "num_envs_per_worker",
        "num_envs_per_env_runner", "envs_per_worker", "training_num",
    ),
    "env_kwargs": ("env_config", "env_args", "env_params", "env_kwarg"),
    "env": ("env_id", "env_name", "environment", "game", "task"),
    "n_step": ("n_steps", "nsteps", "nstep", "n_step_return", "multi_step", "estimation_step"),
    "unroll": (
        "bptt_horizon", "t_max", "tmax", "recurrence", "seq_len", "max_seq_len", "bptt_length", "n_steps", "num_steps",
        "nsteps", "rollout", "rollout_length", "rollout_fragment_length", "horizon", "unroll_length",
        "trajectory_length", "step_per_collect",
    ),
    "replay": (
        "buffer", "memory", "buffer_size", "replay_size", "replay_buffer_size", "replay_capacity", "buffer_capacity",
        "memory_size",
    ),
    "min_replay": (
        "learning_starts_steps", "replay_start_size", "warmup", "train_start", "burn_in_steps", "learning_starts",
        "start_timesteps", "warmup_steps", "start_steps", "min_replay_size", "num_steps_sampled_before_learning_starts",
    ),
    "batch": ("train_batch", "sample_batch_size", "batch_size", "train_batch_size", "train_batch_size_per_learner"),
    "minibatches": (
        "mini_batches", "mini_batch_size", "nminibatches", "num_minibatches", "n_minibatches", "minibatch_size",
        "sgd_minibatch_size", "batch_size", "num_batches_per_epoch",
    ),
    "epochs": (
        "learning_epochs", "noptepochs", "n_epochs", "num_epochs", "update_epochs", "num_sgd_iter",
        "repeat_per_collect", "ppo_epochs",
    ),
    "clip": (
        "ratio_clip", "cliprange", "clip_range", "clip_coef", "clip_param", "eps_clip", "ppo_clip_ratio", "clip_ratio",
    ),
    "clip_value": (
        "vf_clip_coef", "cliprange_vf", "value_clip_range", "clip_range_vf", "clip_vloss", "vf_clip_param",
        "value_clip",
    ),
    "gae_lambda": ("lambda", "lambda_", "lam", "gae_lam"),
    "entropy_cost": (
        "entropy_loss_scale", "entropy_weight", "ent_loss_coef", "entropy_bonus", "ent_coef_init", "ent_coef",
        "entropy_coef", "entropy_coeff", "entropy_coefficient", "exploration_loss_coeff", "ent_cost",
    ),
    "value_cost": (
        "value_loss_scale", "value_loss_weight", "vf_weight", "vf_coef", "vf_loss_coeff", "value_coef",
        "value_loss_coef", "value_loss_coeff", "baseline_cost",
    ),
    "max_grad_norm": ("grad_norm_clip", "grad_clip", "clip_grad", "clip_grad_norm", "gradient_clip", "grad_norm"),
    "learning_rate": (
        "lr_decay_steps", "lr_final", "final_lr", "lr_decay", "lr_decay_rate", "lr_decay_linear", "lr_schedule_type",
        "anneal_lr_frac", "vf_lr", "actor_lr", "pi_lr", "policy_lr", "critic_learning_rate", "actor_learning_rate",
        "lr_scheduler", "learning_rate_schedule", "lr", "lr_schedule", "anneal_lr", "step_size", "q_lr", "critic_lr",
    ),
    "optimiser": ("opt_type", "optimizer"),
    "optimiser_eps": ("adam_eps", "adam_epsilon", "optimizer_eps", "eps"),
    "gamma": ("discount", "discount_factor"),
    "target_period": (
        "update_target_freq", "target_update_steps", "hard_update_interval", "target_network_update",
        "update_target_every", "target_update", "target_update_interval", "target_network_frequency",
        "target_network_update_freq", "target_update_freq", "target_update_period", "tau",
    ),
    "polyak": ("tau_soft", "tau"),
    "samples_per_insert": (
        "grad_steps", "gradient_updates", "num_updates_per_step", "update_every", "update_freq", "utd_ratio",
        "updates_per_step", "train_freq", "train_frequency", "gradient_steps", "training_intensity", "update_per_step",
        "policy_frequency",
    ),
    "epsilon_start": (
        "eps_max", "max_epsilon", "max_eps", "eps_train", "exploration_initial_eps", "start_e", "initial_epsilon",
        "eps_start",
    ),
    "epsilon_end": (
        "eps_train_final", "eps_min", "min_epsilon", "min_eps", "exploration_final_eps", "end_e", "final_epsilon",
        "eps_end", "epsilon_min",
    ),
    "epsilon_steps": (
        "epsilon_decay_frames", "epsilon_decay_steps", "eps_decay_steps", "exploration_fraction", "epsilon_timesteps",
        "eps_decay", "epsilon_decay",
    ),
    "noise": ("noise_sigma", "exploration_noise_std", "exploration_noise", "exploration_sigma"),
    "random_steps": ("random_timesteps", "learning_starts", "start_timesteps"),
    "prioritised": ("prioritized_replay_buffer", "prioritized", "prioritized_replay", "per"),
    "priority_exponent": ("prio_alpha", "per_alpha", "prioritized_replay_alpha", "alpha"),
    "importance_exponent": ("prio_beta0", "prio_beta", "per_beta", "prioritized_replay_beta", "beta"),
    "atoms": ("num_quantiles", "n_quantiles", "n_atoms", "num_atoms"),
    "noise_std": ("sigma", "noise_stdev"),
    "pairs": ("population_size", "pop_size", "episodes_per_batch", "n_delta"),
    "hidden": (
        "critic_hidden_sizes", "actor_hidden_sizes", "encoder_hidden_units", "encoder_mlp_layers", "mlp_units",
        "net_width", "net_dims", "actor_layers", "units", "hidden_dim", "hidden_layers", "hidden_units", "num_layers",
        "n_layers", "net_arch", "hidden_sizes", "fcnet_hiddens", "hidden_size", "layers", "mlp_layers",
    ),
    "activation": ("activation_fn", "fcnet_activation", "nonlinearity"),
    "torso": (
        "encoder_conv_architecture", "conv_filters", "cnn_channels", "backbone", "policy", "network", "model",
        "encoder", "features_extractor", "cnn",
    ),
    "core": ("rnn_name", "with_rnn", "use_lstm", "lstm", "use_rnn", "rnn_type", "recurrent"),
    "core_layers": ("rnn_num_layers", "lstm_layers", "num_lstm_layers", "n_lstm_layers"),
    "core_size": ("lstm_hidden_size", "lstm_cell_size", "rnn_size"),
    "normalise_obs": (
        "state_preprocessor", "observation_scaler", "vec_normalize", "observation_filter", "obs_normalization",
        "normalize_obs", "norm_obs", "obs_norm", "normalize_input", "normalize_observations",
    ),
    "normalise_reward": (
        "value_preprocessor", "value_norm", "return_norm", "normalize_reward", "norm_reward", "normalize_returns",
        "rew_norm", "reward_normalization",
    ),
    "frame_stack": ("n_stack", "num_stack", "framestack", "stack"),
    "frame_skip": ("frameskip", "action_repeat", "env_frameskip"),
    "learners": ("num_learners", "num_gpus_per_learner"),
    "device": ("n_gpu", "gpus", "cpu", "cuda", "gpu", "use_cuda", "use_gpu", "num_gpus"),
    "run_dir": (
        "tb_log_name", "eval_log_path", "monitor_dir", "job_name", "experiment_directory", "tensorboard_dir",
        "logs_dir", "experiment_name", "run_id", "model_dir", "results_dir", "log_folder", "out_dir", "workdir",
        "checkpoint_path", "checkpoint_dir", "tag", "name", "log_dir", "logdir", "log_path", "tensorboard_log",
        "output_dir", "save_dir", "save_path", "local_dir", "storage_path", "train_dir", "exp_name", "experiment",
        "run_name",
    ),
    "eval_every": ("eval_freq", "eval_frequency", "evaluation_interval", "eval_interval"),
    "eval_episodes": (
        "episode_per_test", "evaluation_num_episodes", "test_episodes", "test_num", "eval_num_episodes",
        "n_eval_episodes", "evaluation_duration", "num_eval_episodes",
    ),
    "eval_video": ("capture_video", "save_video", "record_video"),
    "checkpoint_every": ("save_freq", "save_interval", "checkpoint_frequency", "checkpoint_freq", "save_every_sec"),
    "init_from": (
        "load_run", "resume_path", "warm_start", "load_checkpoint", "load_checkpoint_path", "trained_agent",
        "load_path", "load_model", "pretrained", "restore", "from_checkpoint",
    ),
    "log_args": (
        "wandb_mode", "wandb_offline", "wandb_user", "wandb_job_type", "wandb_dir", "project_name", "wandb_name",
        "wandb_entity", "wandb_project", "wandb_project_name", "wandb_group", "wandb_tags",
    ),
    "runtime": ("local_mode", "distributed", "distributed_backend"),
    "log": ("track", "wandb", "with_wandb", "logger", "tensorboard"),
    "quiet": ("progress", "show_progress", "disable_progress_bar", "verbosity", "verbose", "silent", "progress_bar"),
    "seed": ("env_seed", "seed_everything", "random_seed", "rng_seed"),
    "seconds": (
        "minutes", "hours", "max_seconds", "walltime", "wall_time", "max_wall_time", "train_for_seconds",
        "time_limit_s", "max_time", "time_budget_s",
    ),
    "until_return": (
        "test_reward_threshold", "stop_fn", "reward_threshold", "stop_reward", "target_return", "episode_reward_mean",
    ),
    "eval_epsilon": ("eps_test", "test_epsilon"),
    "max_lag": ("max_policy_lag",),
    "max_episode_steps": ("episode_length", "max_episode_length", "time_limit", "max_ep_len", "max_path_length"),
    "double": ("double_q", "double_dqn"),
    "dueling": ("dueling_dqn", "duel"),
    "config": ("config_file", "conf_file", "yaml_file", "cfg", "hyperparams_file", "params_file"),
    "address": ("ray_address", "head_address"),
    "precision": ("fp16", "bf16", "amp", "use_amp", "mixed_precision", "half"),
    "gradient": ("torch_compile", "compile", "use_compile", "cuda_graph", "cudagraphs"),
    "target_kl": ("max_kl", "desired_kl", "kl_target", "kl_threshold"),
    "eval_sampled": ("eval_deterministic", "deterministic_eval", "evaluation_explore"),
    "reward_scale": ("reward_scaler", "rewards_shaper_scale"),
    "sticky_actions": ("repeat_action_probability", "sticky_action_probability"),
    "reward_clip": ("clip_reward", "clip_rewards", "reward_clipping"),
    "burn_in": ("replay_burn_in", "burnin"),
    "rho_bar": ("vtrace_clip_rho_threshold", "rho_clip", "clip_rho_threshold"),
    "c_bar": ("vtrace_clip_c_threshold", "clip_c_threshold", "vtrace_clip_pg_rho_threshold"),
    "queue": ("learner_queue_size", "queue_size"),
    "replay_ratio": ("replay_proportion",),
    "pop_art": ("popart", "use_popart"),
    "td_clip": ("huber_loss", "huber", "td_error_clip", "delta_clip"),
}  # fmt: skip

WORDS = {  # words of such names -> that of Shoal's, so that a name that no table has is understood by its words
    "coef": "cost", "coeff": "cost", "coefficient": "cost", "coefs": "cost", "weight": "cost", "bonus": "cost",
    "ent": "entropy", "vf": "value", "baseline": "value", "lr": "learning_rate",
    "normalize": "normalise", "normalization": "normalise", "rew": "reward", "rewards": "reward",
    "observation": "obs", "observations": "obs", "optimizer": "optimiser", "prioritized": "prioritised",
    "rollout": "unroll", "rollouts": "unroll", "trajectory": "unroll", "fragment": "unroll",
    "buffer": "replay", "timesteps": "steps", "timestep": "steps", "environments": "envs", "environment": "env",
    "workers": "actors", "worker": "actors", "evaluation": "eval", "evaluate": "eval", "test": "eval", "ckpt":
    "checkpoint",
    "freq": "every", "frequency": "every", "interval": "every", "discount": "gamma",
    "init": "start", "initial": "start", "final": "end", "eps": "epsilon", "exploration": "epsilon",
    "maximum": "max", "minimum": "min", "minibatch": "minibatches",
    "clipping": "clip", "gpu": "device", "cuda": "device",
}  # fmt: skip
COUNTS = {"n", "num", "number", "count"}  # words after which a name is of several
FILLERS = COUNTS | {"greedy", "total", "use", "using", "with", "enable", "of", "the", "is", "should", "loss"}
UNITS = {"size", "length", "len", "steps", "units", "id", "name", "value", "type", "capacity", "coef", "fraction"}

FLAGS: dict[str, tuple[str, ...]] = {  # of commands
    "episodes": ("n_episodes", "num_episodes"),
    "video": ("render", "render_mode"),
    "to": ("format", "export_format", "target"),
    "out": ("output", "filename"),
    "trials": ("n_trials", "num_trials", "num_samples", "max_trials"),
    "slots": ("max_concurrent_trials", "max_concurrent"),
    "study": ("study_name",),
}
ALIASES = {"ppo": "recurrent-ppo"}  # names by which a system of Shoal's may be asked for too
ELSEWHERE = {  # systems of the field that are not here -> what to say of them
    "sac": "apex-dpg and d4pg serve continuous actions, and examples/own_sac.py is SAC in 70 lines",
    "td3": "d4pg and apex-dpg are its distributed relatives, and examples/own_td3.py is TD3 in 60 lines",
    "ddpg": "apex-dpg is DDPG with n-step returns, prioritised replay and any number of actors",
    "a2c": "a3c is its asynchronous form, and examples/own_system.py is A2C in 60 lines",
    "appo": "impala serves: it is asynchronous and corrects its policy lag",
    "rainbow-dqn": "rainbow",
    "double-dqn": "dqn is double by default",
    "ddqn": "dqn is double by default",
    "dueling-dqn": "dqn has --dueling",
    "c51": "rainbow has --preset c51",
    "qr-dqn": "rainbow has --preset qr-dqn",
    "qrdqn": "rainbow has --preset qr-dqn",
    "noisy-dqn": "rainbow has --preset noisy",
    "drqn": "r2d2 is a recurrent Q-network",
    "ars": "es has --preset ars",
    "openai-es": "es",
    "trpo": "recurrent-ppo serves, with --target-kl to bound each step",
    "recurrent_ppo": "recurrent-ppo",
    "ppo-lstm": "recurrent-ppo with --core lstm",
    "apex": "apex-dqn for discrete actions, apex-dpg for continuous ones",
    "ape-x": "apex-dqn for discrete actions, apex-dpg for continuous ones",
    "ddppo": "dd-ppo",
    "cql": "nothing here learns from a fixed data set alone; r2d3 and qt-opt learn beside one",
    "bc": "nothing here imitates; r2d3 and qt-opt learn from demonstrations and rewards",
    "muzero": "nothing here learns a model of the environment",
    "alphazero": "nothing here learns a model of the environment or searches",
    "dreamer": "nothing here learns a model of the environment",
    "dreamerv3": "nothing here learns a model of the environment",
    "iqn": "rainbow has --preset qr-dqn, a distribution of returns by quantiles",
    "fqf": "rainbow has --preset qr-dqn, a distribution of returns by quantiles",
    "pqn": "dqn and async-q serve",
    "ppg": "recurrent-ppo serves, with --separate-critic for networks of their own",
    "rpo": "recurrent-ppo serves",
    "npg": "recurrent-ppo serves, with --target-kl to bound each step",
    "reinforce": "a3c and recurrent-ppo serve: they are policy gradients with a critic",
    "acer": "impala serves: it learns off-policy from a replay with --replay",
    "acktr": "recurrent-ppo serves",
    "tqc": "d4pg serves: its critic learns a distribution of returns",
    "redq": "apex-dpg and d4pg serve continuous actions",
    "crossq": "apex-dpg and d4pg serve continuous actions",
    "droq": "apex-dpg and d4pg serve continuous actions",
    "her": "nothing here relabels goals",
    "iql": "nothing here learns from a fixed data set alone; r2d3 and qt-opt learn beside one",
    "marwil": "nothing here learns from a fixed data set alone; r2d3 and qt-opt learn beside one",
    "gail": "nothing here imitates; r2d3 and qt-opt learn from demonstrations and rewards",
    "mappo": "one policy plays here; many agents of one kind can be environments of one actor",
    "ippo": "one policy plays here; many agents of one kind can be environments of one actor",
    "marl": "one policy plays here; many agents of one kind can be environments of one actor",
    "qmix": "one policy plays here; many agents of one kind can be environments of one actor",
    "maddpg": "one policy plays here; many agents of one kind can be environments of one actor",
}
NAMES_A_SYSTEM = ("algo", "algorithm", "alg", "system", "agent", "agent_class", "trainer", "model_class")
NAMES_AN_ENVIRONMENT = ("env_id", "env_name", "environment", "gym_id", "game", "task")
COMMANDS = {  # commands of other libraries and tools -> that of Shoal
    "enjoy": "eval", "test": "eval", "evaluate": "eval", "evaluation": "eval", "play": "eval", "view": "eval",
    "run": "train", "learn": "train", "fit": "train", "start": "train", "continue": "resume", "restore": "resume",
    "optimize": "tune", "optimise": "tune", "hpo": "tune", "sweep": "tune", "tensorboard": "watch",
    "dashboard": "watch", "monitor": "watch", "status": "runs", "ls": "runs", "list": "systems", "algos": "systems",
    "algorithms": "systems", "environments": "envs", "tasks": "envs", "models": "zoo", "pretrained": "zoo",
    "rollout": "eval", "rl_zoo3": "train", "info": "runs", "visualize": "eval", "render": "eval", "demo": "eval",
    "pbt": "train pbt", "population": "train pbt", "list-envs": "envs", "list-algos": "systems",
    "list-systems": "systems", "settings": "config", "presets": "config", "show": "config",
    "plan-run": "plan", "ray": "cluster", "film": "eval", "video": "eval",
    "onnx": "export", "save": "export", "diff": "compare", "graph": "plot", "curves": "plot", "benchmark": "profile",
}  # fmt: skip


def instead(known: Mapping[str, str], name: str) -> str:
    """Return what to say of a name that ``known`` knows of other libraries, to end a sentence with; else nothing."""
    return f": {known[name]}" if name in known else ""


_BY_NAME: dict[str, list[str]] = {}  # names of others without their separators (batchsize) -> fields and options
for _field, _others in (SETTINGS | FLAGS).items():
    for _other in _others:
        _BY_NAME.setdefault(_other.replace("_", ""), []).append(_field)


def foreign_names() -> list[str]:
    """Return the names of other libraries that ``known_elsewhere`` knows, without separators."""
    return [*_BY_NAME]


def is_foreign(name: str) -> bool:
    """Return True if ``known_elsewhere`` knows the name, whether or not the system at hand has such a setting."""
    return _squashed(name) in _BY_NAME


def fields_called(name: str) -> list[str]:
    """Return the fields and options that other libraries call ``name``."""
    return _BY_NAME.get(_squashed(name), [])


def known_elsewhere(name: str, names: Container[str]) -> str | None:
    """Return the one of ``names`` (with underscores or dashes) that other libraries call ``name``; None if there is
    none."""
    for found in _BY_NAME.get(_squashed(name), ()):
        for spelled in (found, found.replace("_", "-")):
            if spelled in names:
                return spelled
    return None


def _squashed(name: str) -> str:
    return name.replace("-", "_").removeprefix("no_").replace("_", "")
