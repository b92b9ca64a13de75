"""Settings of other libraries for what is done here unasked, otherwise or in no way, and what to say of each."""

from __future__ import annotations

import re

_ADVANTAGES = "the PPOs always normalise advantages (dd-ppo: --no-normalise-advantage), the others never do"
_NETWORK = "the network's settings are given one by one: --hidden 64 64, --activation, --torso"
_EVALUATOR = "--eval-every adds one evaluator, which plays beside the training"
_EPISODES = "episode_return is the mean of the last 100 episodes"
_KEPT = "the newest checkpoints are kept, and the best policy beside them"
_BEST = "with --eval-every, the best policy by the run's own evaluations is kept"
_MAKER = "env takes FILE.py:FACTORY, a function that makes and wraps the environment: --env FILE.py:FACTORY"
_POLICY = "the policy learns at every update"
_FILES = "shoal export RUN writes files, and nothing is uploaded"
_CRITICS = "one critic is learned, and d4pg's learns a distribution of returns: examples/own_td3.py has two"
_SAC = "no system here learns a temperature: examples/own_sac.py is SAC"
_TARGET = "actions of the target policy get no noise: examples/own_td3.py has it"
_ACTIONS = "actions are learned in [-1, 1] and scaled to the environment's bounds by themselves"
_CORES = "each actor is one process, and --actors says how many there are; --learner-threads is for the learner"
_LOG = "--log names the back ends, and a run's directory always has its metrics as CSV: --log tensorboard"
_ENDS = "a run ends by --steps, --seconds or --until-return"
NOT_NEEDED = {  # settings of other libraries for what is done here unasked, or in no way -> what to say of it
    "framework": "Shoal is written in PyTorch alone",
    "vec_env": "environments run in vectors by themselves: --envs, --actors",
    "vec_env_cls": "environments run in vectors by themselves: --envs, --actors",
    "vectorization": "environments run in vectors by themselves: --envs, --actors",
    "norm_adv": _ADVANTAGES,
    "normalize_advantage": _ADVANTAGES,
    "save_model": "a run always saves its policy: --checkpoint-every, shoal eval",
    "torch_deterministic": "runs with --runtime serial repeat exactly",
    "deterministic": "runs with --runtime serial repeat exactly",
    "explore": "training explores; shoal eval RUN plays the best guess, and shoal eval RUN --sampled draws actions",
    "callback": "in Python, observers=f calls f with each row of metrics: shoal.train(..., observers=f)",
    "callbacks": "in Python, observers=f calls f with each row of metrics: shoal.train(..., observers=f)",
    "policy_kwargs": _NETWORK,
    "reset_num_timesteps": "a resumed run counts on; shoal.train(..., init_from=run) begins at 0 from its policy",
    "n_trials": "shoal tune searches settings, and shoal tune --trials says how many are tried",
    "optimize": "shoal tune searches settings",
    "optimize_hyperparameters": "shoal tune searches settings",
    "no_tune": "shoal train tries one set of settings, and shoal tune searches them",
    "save_replay_buffer": "checkpoints hold the replay, as much of it as --checkpoint-replay-gb allows",
    "uuid": "each run has a directory of its own name, which --run-dir chooses",
    "gym_packages": "an id is given with the module that registers it: --env MODULE:ID",
    "n_critics": _CRITICS,
    "n_critic": _CRITICS,
    "num_critics": _CRITICS,
    "twin_q": _CRITICS,
    "double_critic": _CRITICS,
    "target_entropy": _SAC,
    "auto_alpha": _SAC,
    "init_alpha": _SAC,
    "initial_alpha": _SAC,
    "initial_temperature": _SAC,
    "target_noise": _TARGET,
    "policy_noise": _TARGET,
    "noise_clip": _TARGET,
    "target_policy_noise": _TARGET,
    "normalize_actions": _ACTIONS,
    "clip_actions": _ACTIONS,
    "action_scaler": _ACTIONS,
    "cores": _CORES,
    "torch_threads": _CORES,
    "num_threads": _CORES,
    "num_gpus_per_worker": "actors play on CPUs, and --device says where the learner computes",
    "mlflow": "--log mlflow sends the metrics there",
    "csv": _LOG,
    "log_file": _LOG,
    "kl_loss_coeff": "recurrent-ppo bounds its steps by --clip and --target-kl, and by no KL penalty",
    "kl_adaptive": "recurrent-ppo bounds its steps by --clip and --target-kl, and by no KL penalty",
    "overwrite": "a directory that holds a run is never overwritten: --run-dir names a new one",
    "force": "a directory that holds a run is never overwritten: --run-dir names a new one",
    "resume_training": "shoal resume RUN goes on with a run",
    "continue_training": "shoal resume RUN goes on with a run",
    "auto_resume": "shoal resume RUN goes on with a run",
    "advantage_normalization": _ADVANTAGES,
    "adv_norm": _ADVANTAGES,
    "shuffle_minibatches": "the PPOs shuffle each epoch",
    "actor_critic_share_weights": "--no-separate-critic shares the layers of policy and value, --separate-critic not",
    "write_interval": "metrics are written as the run goes, and shoal watch shows them",
    "env_batch_size": "environments run in vectors by themselves: --envs, --actors",
    "vec_backend": "environments run in vectors by themselves: --envs, --actors",
    "total_episodes": _ENDS,
    "n_updates": _ENDS,
    "num_updates_total": _ENDS,
    "num_iterations": _ENDS,
    "stop_iters": _ENDS,
    "epoch": _ENDS,
    "max_epoch": _ENDS,
    "step_per_epoch": _ENDS,
    "epoch_num_steps": _ENDS,
    "num_cpus_per_env_runner": "each actor is one process: --actors",
    "num_cpus_per_worker": "each actor is one process: --actors",
    "evaluation_num_env_runners": _EVALUATOR,
    "kl_coeff": "recurrent-ppo bounds its steps by --clip and --target-kl, and by no KL penalty",
    "vf_share_layers": "--no-separate-critic shares the layers of policy and value, and --separate-critic does not",
    "num_policies": "shoal train pbt trains a population of policies",
    "with_pbt": "shoal train pbt trains a population of policies",
    "num_batches_to_accumulate": "a batch is learned from as soon as it is there",
    "with_vtrace": "impala corrects the policy lag by V-trace, and the PPOs wait for their actors",
    "use_vtrace": "impala corrects the policy lag by V-trace, and the PPOs wait for their actors",
    "restart_behavior": "a directory that holds a run is never overwritten: shoal resume goes on with it",
    "load_checkpoint_kind": "shoal eval RUN --best plays the best policy by the run's own evaluations",
    "exploration_loss": "--entropy-cost keeps policies from becoming certain too soon",
    "async_rl": "impala learns while its actors play; the PPOs wait for theirs",
    "serial_mode": "--runtime serial runs all in one process",
    "worker_num_splits": "--double-buffer on does so where --inference server acts",
    "batched_sampling": "environments run in vectors by themselves: --envs, --actors",
    "as_test": "--until-return ends a run once its return is good enough",
    "resume": "shoal resume RUN goes on with a run",
    "use_sde": "no system here has state-dependent exploration",
    "hyperparams": "settings are given one by one, as in --learning-rate 1e-3",
    "render": "shoal eval RUN --video FILE.mp4 films what a policy plays, and --eval-video films each evaluation",
    "render_mode": "shoal eval RUN --video FILE.mp4 films what a policy plays, and --eval-video films each evaluation",
    "n_eval_envs": "--eval-every adds one evaluator, which plays --eval-episodes each time",
    "resume_from": "shoal resume RUN goes on with a run",
    "log_interval": "metrics are written as the run goes, and shoal watch shows them",
    "num_nodes": "--runtime ray and torchrun use several machines: shoal cluster --help",
    "nodes": "--runtime ray and torchrun use several machines: shoal cluster --help",
    "world_size": "--runtime ray and torchrun use several machines: shoal cluster --help",
    "algo": "the system comes first: shoal train SYSTEM, or shoal.train(SYSTEM, env=...)",
    "algorithm": "the system comes first: shoal train SYSTEM, or shoal.train(SYSTEM, env=...)",
    "seeds": "each seed is a run of its own: shoal train SYSTEM --seeds 0 1 2, or shoal.train(..., seed=N) for each",
    "iterations": _ENDS,
    "train_iterations": _ENDS,
    "training_iteration": _ENDS,
    "updates": _ENDS,
    "num_updates": _ENDS,
    "episodes": _ENDS,
    "num_episodes": _ENDS,
    "n_episodes": _ENDS,
    "max_episodes": _ENDS,
    "stop": _ENDS,
    "max_iterations": _ENDS,
    "evaluation_num_workers": _EVALUATOR,
    "evaluation_parallel_to_training": _EVALUATOR,
    "ortho_init": "networks are initialised as their papers say: orthogonally for the PPOs",
    "log_std_init": "the standard deviation of a policy begins at 1",
    "stats_window_size": _EPISODES,
    "stats_avg": _EPISODES,
    "use_gae": "the PPOs always use it, and --gae-lambda 1 makes plain returns of it",
    "use_critic": "every actor-critic has its critic",
    "batch_mode": "rollouts have a fixed length: --unroll",
    "shuffle_batch_per_epoch": "the PPOs shuffle each epoch",
    "checkpoint_at_end": "a run is always saved at its end, and --checkpoint-every says how often before",
    "keep_checkpoints": _KEPT,
    "keep_checkpoints_num": _KEPT,
    "save_best_metric": _BEST,
    "save_best": _BEST,
    "save_best_model": _BEST,
    "env_wrapper": _MAKER,
    "wrapper": _MAKER,
    "dry_run": "shoal config SYSTEM shows the settings of a run, and shoal plan SYSTEM its speed",
    "fast_dev_run": "--steps 1000 makes a short run, and shoal config SYSTEM shows its settings",
    "benchmark": "shoal profile SYSTEM measures where the time goes",
    "decorrelate_envs_on_one_worker": "each environment has a seed of its own",
    "set_workers_cpu_affinity": "the operating system places the processes",
    "heartbeat_interval": "--hang-timeout says how long a process may be silent",
    "no_render": "nothing is rendered unless --eval-video asks for it",
    "policy_delay": _POLICY,
    "policy_freq": _POLICY,
    "fps": "shoal eval RUN --video FILE films at the environment's own pace",
    "hf_entity": _FILES,
    "upload_model": "with --log wandb, the best policy is uploaded as an artifact",
    "push_to_hub": _FILES,
    "hf_repo": _FILES,
    "log_level": "metrics are written as the run goes, and shoal watch shows them",
    "debug": "--runtime serial runs all in one process, where a debugger works",
    "enable_rl_module_and_learner": _NETWORK,
    "model_config": _NETWORK,
    "network_kwargs": _NETWORK,
    "mode": "shoal train SYSTEM trains, and shoal eval RUN evaluates",
    "play": "shoal eval RUN plays what was trained",
    "train": "shoal train SYSTEM trains",
    "evaluate": "shoal eval RUN evaluates what was trained",
}


def in_python(told: str) -> str:
    """Return a sentence about flags as one about arguments in Python: ``--hidden 64 64`` is hidden=(64, 64), and
    ``--no-check`` check=False. Commands (``shoal tune --trials``) stay as they are."""
    return _FLAG_IN_TEXT.sub(_argument, told).removeprefix("in Python, ")


def _argument(found: re.Match[str]) -> str:
    if found["command"]:
        return found[0]
    values = [word if word[0].isdigit() else repr(word) for word in found["words"].split()]
    value = f"({', '.join(values)})" if len(values) > 1 else "".join(values) or "..."
    return f"{found['name'].replace('-', '_')}={'False' if found['no'] else value}"


_FLAG_IN_TEXT = re.compile(
    r"(?P<command>shoal [a-z]+(?: [A-Z]+)?(?: --[a-z-]+)+)|"
    r"--(?P<no>no-)?(?P<name>[a-z]+(?:-[a-z]+)*)"
    r"(?P<words>(?: [A-Z]+:[A-Z]+)|(?: [0-9][\w.-]*)+|(?: (?:serial|ray|server|lstm|on|off)\b)?)"
)
