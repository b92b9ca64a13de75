"""What other libraries call a setting or a system, so that a suggestion understands whoever comes from them."""

from __future__ import annotations

from collections.abc import Container, Mapping

SETTINGS: dict[str, tuple[str, ...]] = {  # field or option -> names in SB3, CleanRL, RLlib, Tianshou, Sample Factory
    "steps": (
        "total_timesteps", "total_steps", "num_timesteps", "n_timesteps", "timesteps", "max_timesteps", "max_steps",
        "total_env_steps", "num_env_steps", "train_for_env_steps", "stop_timesteps", "total_frames",
    ),
    "actors": (
        "num_workers", "n_workers", "workers", "num_actors", "n_actors", "num_env_runners", "num_rollout_workers",
        "num_processes", "num_cpus",
    ),
    "envs": (
        "num_envs", "n_envs", "num_envs_per_worker", "num_envs_per_env_runner", "envs_per_worker", "training_num",
    ),
    "env_kwargs": ("env_config", "env_args", "env_params", "env_kwarg"),
    "env": ("env_id", "env_name", "environment", "game", "task"),
    "n_step": ("n_steps", "nsteps", "nstep", "n_step_return", "multi_step", "estimation_step"),
    "unroll": (
        "n_steps", "num_steps", "nsteps", "rollout", "rollout_length", "rollout_fragment_length", "horizon",
        "unroll_length", "trajectory_length", "step_per_collect",
    ),
    "replay": (
        "buffer_size", "replay_size", "replay_buffer_size", "replay_capacity", "buffer_capacity", "memory_size",
    ),
    "min_replay": (
        "learning_starts", "start_timesteps", "warmup_steps", "start_steps", "min_replay_size",
        "num_steps_sampled_before_learning_starts",
    ),
    "batch": ("batch_size", "train_batch_size", "train_batch_size_per_learner"),
    "minibatches": (
        "num_minibatches", "n_minibatches", "minibatch_size", "sgd_minibatch_size", "batch_size",
        "num_batches_per_epoch",
    ),
    "epochs": ("n_epochs", "num_epochs", "update_epochs", "num_sgd_iter", "repeat_per_collect", "ppo_epochs"),
    "clip": ("clip_range", "clip_coef", "clip_param", "eps_clip", "ppo_clip_ratio", "clip_ratio"),
    "clip_value": ("clip_range_vf", "clip_vloss", "vf_clip_param", "value_clip"),
    "gae_lambda": ("lambda", "lambda_", "lam", "gae_lam"),
    "entropy_cost": (
        "ent_coef", "entropy_coef", "entropy_coeff", "entropy_coefficient", "exploration_loss_coeff", "ent_cost",
    ),
    "value_cost": ("vf_coef", "vf_loss_coeff", "value_coef", "value_loss_coef", "value_loss_coeff", "baseline_cost"),
    "max_grad_norm": ("grad_clip", "clip_grad", "clip_grad_norm", "gradient_clip", "grad_norm"),
    "learning_rate": ("lr", "lr_schedule", "anneal_lr", "step_size", "q_lr", "critic_lr"),
    "optimiser": ("optimizer",),
    "optimiser_eps": ("adam_eps", "adam_epsilon", "optimizer_eps", "eps"),
    "gamma": ("discount", "discount_factor"),
    "target_period": (
        "target_update_interval", "target_network_frequency", "target_network_update_freq", "target_update_freq",
        "target_update_period", "tau",
    ),
    "polyak": ("tau",),
    "samples_per_insert": (
        "train_freq", "train_frequency", "gradient_steps", "training_intensity", "update_per_step",
        "policy_frequency",
    ),
    "epsilon_start": ("exploration_initial_eps", "start_e", "initial_epsilon", "eps_start"),
    "epsilon_end": ("exploration_final_eps", "end_e", "final_epsilon", "eps_end", "epsilon_min"),
    "epsilon_steps": ("exploration_fraction", "epsilon_timesteps", "eps_decay", "epsilon_decay"),
    "noise": ("exploration_noise", "exploration_sigma"),
    "random_steps": ("learning_starts", "start_timesteps"),
    "prioritised": ("prioritized", "prioritized_replay", "per"),
    "priority_exponent": ("prioritized_replay_alpha", "alpha"),
    "importance_exponent": ("prioritized_replay_beta", "beta"),
    "atoms": ("n_atoms", "num_atoms"),
    "noise_std": ("sigma", "noise_stdev"),
    "pairs": ("population_size", "pop_size", "episodes_per_batch", "n_delta"),
    "hidden": ("net_arch", "hidden_sizes", "fcnet_hiddens", "hidden_size", "layers", "mlp_layers"),
    "activation": ("activation_fn", "fcnet_activation", "nonlinearity"),
    "torso": ("policy", "network", "model", "encoder", "features_extractor", "cnn"),
    "core": ("use_lstm", "lstm", "use_rnn", "rnn_type", "recurrent"),
    "core_size": ("lstm_hidden_size", "lstm_cell_size", "rnn_size"),
    "normalise_obs": ("normalize_obs", "norm_obs", "obs_norm", "normalize_input", "normalize_observations"),
    "normalise_reward": ("normalize_reward", "norm_reward", "normalize_returns", "rew_norm", "reward_normalization"),
    "frame_stack": ("n_stack", "num_stack", "framestack", "stack"),
    "frame_skip": ("frameskip", "action_repeat", "env_frameskip"),
    "learners": ("num_learners", "num_gpus_per_learner"),
    "device": ("cuda", "gpu", "use_cuda", "use_gpu", "num_gpus"),
    "run_dir": (
        "log_dir", "logdir", "log_path", "tensorboard_log", "output_dir", "save_dir", "save_path", "local_dir",
        "storage_path", "train_dir", "exp_name", "experiment", "run_name",
    ),
    "eval_every": ("eval_freq", "eval_frequency", "evaluation_interval", "eval_interval"),
    "eval_episodes": ("n_eval_episodes", "evaluation_duration", "num_eval_episodes"),
    "eval_video": ("capture_video", "save_video", "record_video"),
    "checkpoint_every": ("save_freq", "save_interval", "checkpoint_frequency", "checkpoint_freq", "save_every_sec"),
    "init_from": ("trained_agent", "load_path", "load_model", "pretrained", "restore", "from_checkpoint"),
    "log_args": ("wandb_entity", "wandb_project", "wandb_project_name", "wandb_group", "wandb_tags"),
    "runtime": ("local_mode", "distributed", "distributed_backend"),
    "log": ("track", "wandb", "with_wandb", "logger", "tensorboard"),
    "quiet": ("verbose", "silent", "progress_bar"),
    "seed": ("random_seed", "rng_seed"),
}  # fmt: skip

NOT_NEEDED = {  # settings of other libraries for what is done here unasked, or in no way -> what to say of it
    "framework": "Shoal is written in PyTorch alone",
    "vec_env": "environments run in vectors by themselves: --envs, --actors",
    "vec_env_cls": "environments run in vectors by themselves: --envs, --actors",
    "vectorization": "environments run in vectors by themselves: --envs, --actors",
    "norm_adv": "recurrent-ppo and dd-ppo always normalise advantages, the others never do",
    "normalize_advantage": "recurrent-ppo and dd-ppo always normalise advantages, the others never do",
    "save_model": "a run always saves its policy: --checkpoint-every, shoal eval",
    "torch_deterministic": "runs with --runtime serial repeat exactly",
    "deterministic": "runs with --runtime serial repeat exactly",
    "explore": "training explores, and shoal eval plays the best guess unless it has --sampled",
    "callback": "observers=f calls f with each row of metrics: shoal.train(..., observers=f)",
    "callbacks": "observers=f calls f with each row of metrics: shoal.train(..., observers=f)",
    "policy_kwargs": "the network's settings are arguments of their own: hidden=(64, 64), activation='relu', torso=...",
    "reset_num_timesteps": "a resumed run counts on; shoal.train(..., init_from=run) begins at 0 from its policy",
    "use_sde": "no system here has state-dependent exploration",
    "hyperparams": "settings are flags of their own, as in --learning-rate 1e-3",
    "algo": "the system is the first word: shoal train SYSTEM",
    "algorithm": "the system is the first word: shoal train SYSTEM",
}

FLAGS: dict[str, tuple[str, ...]] = {  # of commands
    "episodes": ("n_episodes", "num_episodes"),
    "video": ("render", "render_mode"),
    "to": ("format", "export_format", "target"),
    "out": ("output", "filename"),
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
    "marl": "one policy plays here; many agents of one kind can be environments of one actor",
    "qmix": "one policy plays here; many agents of one kind can be environments of one actor",
    "maddpg": "one policy plays here; many agents of one kind can be environments of one actor",
}
COMMANDS = {  # commands of other libraries and tools -> that of Shoal
    "enjoy": "eval", "test": "eval", "evaluate": "eval", "evaluation": "eval", "play": "eval", "view": "eval",
    "run": "train", "learn": "train", "fit": "train", "start": "train", "continue": "resume", "restore": "resume",
    "optimize": "tune", "optimise": "tune", "hpo": "tune", "sweep": "tune", "tensorboard": "watch",
    "dashboard": "watch", "monitor": "watch", "status": "runs", "ls": "runs", "list": "systems", "algos": "systems",
    "algorithms": "systems", "environments": "envs", "tasks": "envs", "models": "zoo", "pretrained": "zoo",
    "onnx": "export", "save": "export", "diff": "compare", "graph": "plot", "curves": "plot", "benchmark": "profile",
}  # fmt: skip
_PLAYS = "policy.act(obs) returns the action for an observation, and policy.reset() begins an episode"
_TRAINS = "shoal.train(...) trains, and shoal.resume(run, steps=...) trains further"
OF_POLICY = {  # what policies have in other libraries -> what to say of it
    "predict": _PLAYS, "get_action": _PLAYS, "select_action": _PLAYS, "compute_single_action": _PLAYS,
    "compute_actions": _PLAYS, "forward": _PLAYS, "forward_inference": _PLAYS, "forward_exploration": _PLAYS,
    "learn": _TRAINS, "train": _TRAINS, "fit": _TRAINS,
    "load": "shoal.load(file) opens a saved policy, or the policy of a run",
    "set_env": "policy.within(env) is the policy in another environment",
    "get_parameters": "policy.params holds its parameters", "parameters": "policy.params holds its parameters",
    "state_dict": "policy.params holds its parameters", "q_net": "policy.params holds its parameters",
    "policy": "this is the policy itself, and policy.params holds its parameters",
    "eval": "a policy only plays: it has no training mode",
    "get_env": "policy.spec describes its environment", "env": "policy.spec describes its environment",
    "set_random_seed": "run.policy(seed=...) seeds its sampled actions",
}  # fmt: skip
OF_RUN = {
    "get_policy": "run.policy() is the trained policy",
    "compute_single_action": f"run.policy() is the trained policy: {_PLAYS}",
    "stop": "shoal.train returns when the run has ended; steps=, seconds= and until_return= end it",
    "best_checkpoint": "run.policy(which='best') is the best policy by the run's own evaluations",
    "predict": f"run.policy() is the trained policy: {_PLAYS}",
    "act": f"run.policy() is the trained policy: {_PLAYS}",
    "save": "a run is saved as it goes; run.policy().save(file) writes its policy to one file",
    "load": "shoal.load(run) is its policy, and shoal.resume(run) goes on with it",
    "learn": _TRAINS,
    "train": _TRAINS,
    "fit": _TRAINS,
    "resume": "shoal.resume(run) goes on with it",
    "model": "run.policy() is the trained policy",
    "agent": "run.policy() is the trained policy",
    "get_env": "run.config['env'] names its environment",
    "env": "run.config['env'] names its environment",
    "logger": "run.metrics() holds what was recorded",
    "history": "run.metrics() holds what was recorded",
    "results": "run.metrics() holds what was recorded, and run.report how it ended",
}
OF_SHOAL = {
    "make": "shoal.train(system, env=NAME) makes environments by their names; gymnasium.make makes one to play in",
    "make_vec_env": "shoal.train(system, env=NAME) makes environments by their names, as many as actors= and envs= say",
    "evaluate_policy": "shoal.evaluate(policy, env) plays whole episodes",
    "tune": "the command shoal tune searches settings, and shoal.pbt trains a population",
    "Tuner": "the command shoal tune searches settings, and shoal.pbt trains a population",
    "callbacks": "shoal.train(..., observers=f) calls f with each row of metrics",
    "EvalCallback": "shoal.train(..., eval_every=...) evaluates as it trains and keeps the best policy",
    "CheckpointCallback": "a run saves checkpoints by itself: checkpoint_every=... says how often",
    "VecNormalize": "shoal.train(..., normalise_obs=True, normalise_reward=True) normalises, where the system has it",
    "register_env": "gymnasium.register names an environment, and env= takes the class or function that makes it",
    "init": "nothing needs to be started first: shoal.train(system, env=...) starts what it needs",
    "seed": "shoal.train(..., seed=...) seeds everything of a run",
    "Algorithm": "shoal.train(system, env=...) trains: shoal.systems() lists the systems",
}
OF_ARGUMENTS = {  # of what plays a policy
    "deterministic": "greedy=True plays the policy's best action, and greedy=False draws one",
    "explore": "greedy=True plays the policy's best action, and greedy=False draws one",
    "n_eval_episodes": "episodes= says how many are played",
    "num_episodes": "episodes= says how many are played",
    "n_episodes": "episodes= says how many are played",
    "n_envs": "envs= says how many are played together",
    "num_envs": "envs= says how many are played together",
    "state": "the policy keeps its recurrent state, and policy.reset() begins an episode",
    "episode_start": "first= says in which environments an episode begins, and policy.reset() begins one",
    "mask": "action_mask= says which actions are allowed",
    "action_masks": "action_mask= says which actions are allowed",
    "render": "the command shoal eval RUN --video FILE films what it plays",
    "return_episode_rewards": "the return of each episode is in the list that it returns",
}


def instead(known: Mapping[str, str], name: str) -> str:
    """Return what to say of a name that ``known`` knows of other libraries, to end a sentence with; else nothing."""
    return f": {known[name]}" if name in known else ""


_BY_NAME: dict[str, list[str]] = {}
for _field, _others in (SETTINGS | FLAGS).items():
    for _other in _others:
        _BY_NAME.setdefault(_other, []).append(_field)


def known_elsewhere(name: str, names: Container[str]) -> str | None:
    """Return the one of ``names`` (with underscores or dashes) that other libraries call ``name``; None if there is
    none."""
    for found in _BY_NAME.get(name.replace("-", "_").removeprefix("no_"), ()):
        for spelled in (found, found.replace("_", "-")):
            if spelled in names:
                return spelled
    return None
