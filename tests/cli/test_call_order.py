"""A call of ``shoal.train`` whose arguments stand in another order is answered with the right call."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import shoal
from shoal.errors import UsageError
from shoal.settings.flags import unknown

train: Any = shoal.train


@pytest.mark.parametrize(
    ("args", "kwargs", "call"),
    [
        (("CartPole-v1", "ppo"), {}, "'ppo', env='CartPole-v1'"),
        (("MyEnv", "PPO"), {}, "'ppo', env='MyEnv'"),
        ((), {"system": "CartPole-v1", "env": "ppo", "steps": 9}, "'ppo', env='CartPole-v1', ..."),
        (("CartPole-v1",), {}, "SYSTEM, env='CartPole-v1'"),
        ((), {"env": "CartPole-v1"}, "SYSTEM, env='CartPole-v1'"),
        ((), {"algo": "ppo", "env": "CartPole-v1", "seed": 1}, "'ppo', env='CartPole-v1', ..."),
        ((), {"agent": "DQN", "env_id": "Pong"}, "'dqn', env='Pong'"),
        ((), {}, "SYSTEM, env=..."),
        (("ppo", "MlpPolicy", "CartPole-v1"), {}, "'ppo', env='CartPole-v1'"),
        (("MlpPolicy", "CartPole-v1"), {}, "SYSTEM, env='CartPole-v1'"),
        (("ppo", "CartPole-v1", 1000), {}, "'ppo', env='CartPole-v1', steps=1000"),
        (("ppo", "CartPole-v1", 1000), {"steps": 9}, "'ppo', env='CartPole-v1', ..."),
    ],
)
def test_the_right_call_is_given(args: tuple[Any, ...], kwargs: dict[str, Any], call: str) -> None:
    with pytest.raises(UsageError) as refused:
        train(*args, **kwargs)
    assert str(refused.value).endswith(f"shoal.train({call})")


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        (("dqn", "CartPole-v1"), {"env": "Pong"}, "multiple values for argument 'env'"),
        (("dqn", "CartPole-v1", "atari"), {}, "too many positional arguments"),
    ],
)
def test_a_call_that_may_mean_two_things_stays_a_type_error(
    args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        train(*args, **kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        (("ppo2", "CartPole-v1"), {}, "unknown system 'ppo2'; did you mean 'recurrent-ppo'?"),
        (("ppo", "CartPole-v1"), {"total_timesteps": 9}, "did you mean 'steps'?"),
        (("ppo", "CartPole-v1"), {"n_rollout_steps": 9}, "did you mean 'unroll'?"),
        (("ppo", "CartPole-v1"), {"learnig_rate": 9}, "did you mean 'learning_rate'?"),
        (("ppo",), {"env_id": "CartPole-v1"}, "did you mean 'env'?"),
        (("dqn", "CartPole-v1"), {"device": "gpu"}, "found 'gpu': did you mean 'cuda'?"),
        (("dqn", "CartPole-v1"), {"seeds": 3}, "each seed is a run of its own"),
        (("dqn", "CartPole-v1"), {"n_eval_envs": 3}, ": eval_every=... adds one evaluator"),
        (("dqn", "CartPole-v1"), {"callback": print}, "unknown setting 'callback' of dqn: observers=f calls f"),
        (("no_such_module", "dqn-like"), {}, "unknown system 'no_such_module'"),
        (("dqn", "PPO"), {}, "expects an environment, found 'PPO', which is a system: shoal.train('dqn', env=...)"),
    ],
)
def test_a_name_is_answered_in_python_as_in_the_shell(args: tuple[Any, ...], kwargs: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as refused:
        train(*args, **kwargs)
    assert told in str(refused.value) and "--" not in str(refused.value).replace("SYSTEM --seeds", "")


def test_what_only_python_has_is_said_to_be_so_in_the_shell() -> None:
    assert ": in Python, observers=f" in str(unknown("flag", "callback", []))


@pytest.mark.parametrize(
    ("function", "args", "told"),
    [
        ("resume", (), "shoal.resume needs path, as in shoal.resume('runs/NAME', steps="),
        ("resume", ("r", 1000), "shoal.resume takes 1 argument without a name, found 2, as in"),
        ("load", (), "shoal.load needs file, as in shoal.load('runs/NAME')"),
        ("evaluate", (), "shoal.evaluate needs run, as in"),
        ("pbt", (), "shoal.pbt needs objective, space, steps and interval, as in"),
        ("load", ("ppo",), "no such file: 'ppo' (this is a system, and a policy is a file, or in the directory of"),
        ("resume", ("PPO",), "no such run directory: 'PPO' (this is a system, and a run is a directory"),
        ("load", (3,), "shoal.load expects the directory of a run, or a file, found 3"),
        ("resume", (None,), "shoal.resume expects the directory of a run, or a file, found None"),
        ("evaluate", ("dqn",), "no such run directory: 'dqn' (this is a system"),
    ],
)
def test_a_call_without_its_arguments_is_answered_with_a_right_one(
    function: str, args: tuple[Any, ...], told: str
) -> None:
    with pytest.raises(UsageError) as refused:
        getattr(shoal, function)(*args)
    assert told in str(refused.value)


def test_what_is_made_already_or_stands_in_another_place_is_answered() -> None:
    with pytest.raises(UsageError, match="every process makes its own: give its name, 'CartPole-v1'"):
        train("dqn", gymnasium.make("CartPole-v1"))
    run: Any = shoal.Run(Path("r"), "dqn", {"env": "CartPole-v1"})
    with pytest.raises(UsageError, match=r"takes the seed first, found 'best': run.policy\(which='best'\)"):
        run.policy("best")


def test_the_module_of_a_system_is_an_attribute_that_is_imported_when_asked_for() -> None:
    program = (
        "import shoal, sys; assert 'torch' not in sys.modules; print(shoal.systems.qt_opt.Config.__module__);"
        "from shoal.systems import d4pg; print(shoal.systems.ppo.__name__, d4pg.__name__)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert told[0].startswith("shoal.systems.qt_opt") and told[1:] == [
        "shoal.systems.recurrent_ppo",
        "shoal.systems.d4pg",
    ]
    systems: Any = shoal.systems
    for name, said in (("rainbw", r"did you mean 'rainbow'\?$"), ("SAC", "own_sac"), ("zzz", "attribute 'zzz'$")):
        with pytest.raises(AttributeError, match=said):
            getattr(systems, name)
