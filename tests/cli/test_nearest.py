"""What an unknown name is answered with: the setting or system that was meant, or nothing where none is near."""

import dataclasses
from functools import cache

import pytest

import shoal
from shoal.cli.main import main
from shoal.errors import UsageError
from shoal.run.options import FLAGS
from shoal.settings.flags import unknown
from shoal.systems import load, require


@cache
def flags(system: str) -> list[str]:
    return [*(field.name for field in dataclasses.fields(load(system).Config)), *FLAGS]


@pytest.mark.parametrize(
    ("system", "wrong", "meant"),
    [
        # Stable-Baselines3, CleanRL, RLlib, Sample Factory and Tianshou, and how people misremember them
        ("ppo", "n-rollout-steps", "unroll"), ("ppo", "rollout-steps", "unroll"), ("ppo", "rollout-size", "unroll"),
        ("ppo", "ent-weight", "entropy-cost"), ("ppo", "value-loss-weight", "value-cost"), ("ppo", "gae", "gae-lambda"),
        ("ppo", "eval-frequency", "eval-every"), ("ppo", "ckpt-interval", "checkpoint-every"),
        ("ppo", "num-env", "envs"), ("ppo", "number-of-envs", "envs"), ("ppo", "batchsize", "minibatches"),
        ("ppo", "kl-target", "target-kl"), ("ppo", "max-episode-length", "max-episode-steps"),
        ("ppo", "num-layers", "hidden"), ("ppo", "cuda-id", "device"), ("ppo", "rewards-scale", "reward-scale"),
        ("ppo", "learning-rate-decay", "learning-rate"), ("ppo", "learnig-rate", "learning-rate"),
        ("ppo", "learningRate", "learning-rate"), ("ppo", "stpes", "steps"), ("ppo", "gama", "gamma"),
        ("ppo", "max-env-steps", "steps"), ("ppo", "vec-normalize", "normalise-obs"), ("ppo", "max-kl", "target-kl"),
        ("ppo", "rnn-num-layers", "core-layers"), ("ppo", "amp", "precision"),
        ("dqn", "grad-steps", "samples-per-insert"), ("d4pg", "actor-lr", "learning-rate"), ("a3c", "t-max", "unroll"),
        ("rainbow", "num-quantiles", "atoms"), ("r2d2", "replay-burn-in", "burn-in"), ("ppo", "hours", "seconds"),
        ("impala", "learner-queue-size", "queue"), ("impala", "vtrace-clip-rho-threshold", "rho-bar"),
        ("ppo", "experiment-name", "run-dir"), ("ppo", "encoder-mlp-layers", "hidden"),
        ("ppo", "total-timestep", "steps"), ("dqn", "bufer-size", "replay"), ("dqn", "learning-start", "min-replay"),
        # skrl, d3rlpy, PufferLib and Baselines
        ("ppo", "mini-batches", "minibatches"), ("ppo", "learning-epochs", "epochs"), ("ppo", "ratio-clip", "clip"),
        ("ppo", "grad-norm-clip", "max-grad-norm"), ("ppo", "value-loss-scale", "value-cost"),
        ("ppo", "entropy-loss-scale", "entropy-cost"), ("apex-dpg", "random-timesteps", "random-steps"),
        ("ppo", "rewards-shaper-scale", "reward-scale"), ("dqn", "reward-scaler", "reward-scale"),
        ("ppo", "state-preprocessor", "normalise-obs"), ("ppo", "value-preprocessor", "normalise-reward"),
        ("ppo", "cliprange-vf", "clip-value"), ("ppo", "vf-clip-coef", "clip-value"), ("ppo", "rnn-name", "core"),
        ("ppo", "bptt-horizon", "unroll"), ("dqn", "prio-alpha", "priority-exponent"),
        ("dqn", "lr-decay", "learning-rate"),
        ("dqn", "lr-decay-steps", "learning-rate"), ("dqn", "train-batch", "batch"), ("dqn", "tb-log-name", "run-dir"),
        ("ppo", "experiment-directory", "run-dir"), ("ppo", "repeat-action-probability", "sticky-actions"),
        ("dqn", "min-epsilon", "epsilon-end"), ("dqn", "per-alpha", "priority-exponent"), ("dqn", "sed", "seed"),
    ],
)  # fmt: skip
def test_the_setting_that_was_meant_is_suggested(system: str, wrong: str, meant: str) -> None:
    told = str(unknown("flag", wrong.replace("-", "_"), flags(system), system))
    assert told.endswith(f"of {system}; did you mean '--{meant}'?")


def test_a_name_that_begins_several_settings_is_answered_with_the_two_that_others_know() -> None:
    told = str(unknown("flag", "epsilon", flags("dqn"), "dqn"))
    assert told.endswith("; did you mean '--epsilon-start' or '--epsilon-end'?")


@pytest.mark.parametrize(
    ("letter", "names", "told"),
    [
        ("n", ["env", "steps", "envs"], "did you mean '--steps' or '--envs'?"),
        ("n", ["episodes", "json"], "did you mean '--episodes'?"),
        ("o", ["run_dir", "steps"], "did you mean '--run-dir'?"),
        ("v", ["quiet", "env"], "two dashes (progress is shown on a terminal, and --quiet turns it off)"),
        ("P", ["preset", "port"], "are whole words after two dashes"),
        ("x", ["env", "steps"], "such as --env or --steps"),
        ("x", ["json", "trust", "out"], "such as --json or --trust"),
    ],
)
def test_a_flag_of_one_letter_is_answered_with_what_the_command_has(letter: str, names: list[str], told: str) -> None:
    found = str(unknown("flag", f"-{letter}", names, "it"))
    assert found.startswith(f"unknown flag '-{letter}' of it: flags are whole words") and found.endswith(told)


@pytest.mark.parametrize(
    ("system", "wrong"),
    [
        ("ppo", "buffer-size"), ("ppo", "buffer-len"), ("ppo", "tau"), ("ppo", "stats-window-size"),
        ("ppo", "ortho-init"), ("ppo", "n-critic"), ("ppo", "actor-worker-gpus"), ("ppo", "policy-init-gain"),
        ("ppo", "env-gpu-observations"), ("ppo", "sde-sample-freq"), ("dqn", "optimize-memory-usage"),
        ("dqn", "num-atoms"), ("dqn", "v-max"), ("es", "gae-lambda"), ("es", "epsilon"), ("dqn", "vf-coef"),
        ("dqn", "value-loss-weight"), ("ppo", "num-gpus-per-worker"), ("ppo", "kl-loss-coeff"), ("ppo", "n-critics"),
        ("ppo", "normalize-actions"), ("ppo", "env-batch-size"), ("ppo", "cores"), ("ppo", "target-noise"),
    ],
)  # fmt: skip
def test_a_setting_that_nothing_serves_is_answered_with_no_suggestion(system: str, wrong: str) -> None:
    assert "did you mean" not in str(unknown("flag", wrong.replace("-", "_"), flags(system), system))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("render", "shoal eval RUN --video FILE.mp4 films"), ("n_eval_envs", "--eval-every adds one evaluator"),
        ("num_nodes", "use several machines: shoal cluster --help"), ("episodes", "a run ends by --steps, --seconds"),
        ("ortho_init", "orthogonally for the PPOs"), ("save_best_model", "the best policy by the run's own"),
        ("debug", "where a debugger works"), ("dry_run", "shoal config SYSTEM shows"),
        ("num_gpus_per_worker", "actors play on CPUs"), ("twin_q", "examples/own_td3.py has two"),
        ("auto_alpha", "examples/own_sac.py is SAC"), ("normalize_actions", "scaled to the environment's bounds"),
        ("cores", "each actor is one process"), ("overwrite", "is never overwritten"), ("n_updates", "a run ends by"),
    ],
)  # fmt: skip
def test_a_setting_that_is_done_otherwise_is_answered_with_how(wrong: str, told: str) -> None:
    found = str(unknown("flag", wrong, flags("ppo"), "ppo"))
    assert told in found and "did you mean" not in found


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        *((wrong, "did you mean 'recurrent-ppo'?") for wrong in (
            "ppo2", "rppo", "pp0", "PPO", "PPOConfig", "MaskablePPO", "ppo_atari", "ppo_continuous_action",
            "RecurrentPPO", "recurrentppo",
        )),
        ("ApexDQN", "did you mean 'apex-dqn'?"), ("IMPALAConfig", "did you mean 'impala'?"),
        ("qt_opt", "did you mean 'qt-opt'?"), ("rainbowdqn", "did you mean 'rainbow'?"),
        ("discrete_sac", "examples/own_sac.py"), ("td3_bc", "examples/own_td3.py"), ("ppo_lstm", "with --core lstm"),
        ("QRDQN", "rainbow has --preset qr-dqn"), ("c51_atari", "rainbow has --preset c51"), ("iqn", "qr-dqn"),
        *((wrong, f"unknown system '{wrong}' (`shoal") for wrong in ("zzz", "vtrace", "evolution", "reinforcement")),
    ],
)  # fmt: skip
def test_the_system_that_was_meant_is_suggested(wrong: str, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        require(wrong)
    assert told in str(refused.value) and "dd-ppo" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("dqn --v-min 1", "unknown flag '--v-min' of dqn (rainbow and d4pg have it)"),
        ("dqn --noisy", "unknown flag '--noisy' of dqn (rainbow has it)"),
        (
            "dqn --ent-coef 1",
            "--ent-coef' of dqn (impala, recurrent-ppo, dd-ppo and 2 other systems have --entropy-cost)",
        ),
        ("ppo --buffer-size 9", "of recurrent-ppo (dqn, apex-dqn, r2d2 and "),
        ("ppo --colour red", "unknown flag '--colour' of recurrent-ppo (--help-all lists all)"),
        ("ppo --seed 1 2", "--seed expects an integer of at least 0, found 1 2: --seeds takes several"),
        ("ppo --seed 1,2", "found 1,2: --seeds takes several"),
        ("ppo --seed x", "--seed expects an integer of at least 0, found x"),
        ("pbt ppo --population 3", "for example: shoal train pbt --of ppo --population 3"),
    ],
)
def test_a_flag_that_the_system_lacks_is_answered_with_those_that_have_it(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words.split()]) == 2
    said = capsys.readouterr().err
    assert told in said and said.count("\n") == 1 and ("takes several" in told) == ("takes several" in said)


def test_in_python_the_systems_that_have_a_setting_are_named() -> None:
    for name, told in (("noisy", r"'noisy' of dqn \(rainbow has it\)$"), ("clip_range", r"dd-ppo have clip\)$"),
                       ("colour", "setting 'colour' of dqn$")):  # fmt: skip
        with pytest.raises(UsageError, match=told):
            shoal.train("dqn", "CartPole-v1", **{name: 1})  # type: ignore[call-overload]
