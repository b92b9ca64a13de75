"""A command whose words stand in another order, or with other dashes, is answered with its right form."""

import pytest

from shoal.cli.main import COMMANDS, main
from shoal.cli.word_order import advice

ORDER = [  # what is typed, and how it should have been
    ("train CartPole-v1 ppo", "train ppo --env CartPole-v1"),
    ("train --env CartPole-v1 ppo", "train ppo --env CartPole-v1"),
    ("--env CartPole-v1 train ppo", "train ppo --env CartPole-v1"),
    ("--algo ppo --env X", "train ppo --env X"),
    ("train --algo ppo --env X", "train ppo --env X"),
    ("train --agent DQN --env-id CartPole-v1 --seeds 1 2", "train dqn --env CartPole-v1 --seeds 1 2"),
    ("ppo", "train ppo"),
    ("ppo --env=X", "train ppo --env X"),
    ("PPO train --env X", "train ppo --env X"),
    ("help ppo", "train ppo --help"),
    ("train ppo CartPole-v1", "train ppo --env CartPole-v1"),
    ("train ppo Pong --seed 2", "train ppo --env Pong --seed 2"),
    ("train Ant ppo", "train ppo --env Ant"),
    ("train ppo env=CartPole-v1 steps=1000 --seed 3", "train ppo --env CartPole-v1 --steps 1000 --seed 3"),
    ("env=CartPole-v1 ppo", "train ppo --env CartPole-v1"),
    ("CartPole-v1", "train SYSTEM --env CartPole-v1"),
    ("train CartPole-v1", "train SYSTEM --env CartPole-v1"),
    ("train my_module:MyEnv dqn", "train dqn --env my_module:MyEnv"),
    ("config CartPole-v1 dqn", "config dqn --env CartPole-v1"),
    ("tune --trials 3 --env CartPole-v1 ppo", "tune ppo --trials 3 --env CartPole-v1"),
    ("train --hidden 64 64 --quiet dqn --env X", "train dqn --hidden 64 64 --quiet --env X"),
    ("--zzz", "train SYSTEM --env ID"),
    # one dash
    ("train ppo -steps 1000", "train ppo --steps 1000"),
    ("train ppo --steps 1000 -env X", "train ppo --steps 1000 --env X"),
    ("train ppo --quiet -env X", "train ppo --quiet --env X"),
    ("train ppo -lr=1e-3", "train ppo --learning-rate 1e-3"),
    ("train ppo -total-timesteps 9", "train ppo --steps 9"),
    ("-env CartPole-v1 -algo ppo", "train ppo --env CartPole-v1"),
]


@pytest.mark.parametrize(("typed", "meant"), ORDER)
def test_the_command_is_given_as_it_should_have_been_typed(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed.split()) == 2
    told = capsys.readouterr().err
    assert told.endswith(f": shoal {meant}\n") and told.count("\n") == 1


@pytest.mark.parametrize("meant", sorted({meant for _, meant in ORDER if "SYSTEM" not in meant and "X" not in meant}))
def test_the_right_form_is_not_answered_again(meant: str) -> None:
    assert advice(meant.split(), COMMANDS) is None


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("TRAIN", "unknown command 'TRAIN'; did you mean 'train'?"),
        ("train ppo on CartPole-v1", "unexpected 'on': expected flags such as --env ID"),
        ("train ppo dqn --env X", "unexpected 'dqn': expected flags such as --env ID"),
        ("train zzz --env X", "unknown system 'zzz' (`shoal systems` lists all)"),
        ("train ppo -e X", "flags are whole words after two dashes; did you mean '--env' or '--envs'?"),
        ("train -n 3", "shoal train needs a system first"),
        ("runs -a nowhere", "unknown flag '-a' of shoal runs: flags are whole words after two dashes, such as --json"),
        ("train dqn --env ppo", "--env expects an environment, found 'ppo', which is a system"),
        ("eval ppo", "no such run directory: 'ppo' (this is a system, and a run is a directory: `shoal runs` lists"),
        ("eval r -episodes 3", "unknown flag '-episodes': flags begin with two dashes, as in --episodes"),
    ],
)
def test_where_the_order_says_nothing_the_word_is_named(
    typed: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed.split()) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "right",
    [
        "train ppo --until-return -inf", "train dqn --env-kwargs.mode -slow", "train dqn --env X --hidden 64 64",
        "train pbt --of dqn", "eval runs/a --envs 3", "record keyboard --env CartPole-v1 --keys left=0 right=1",
        "plot a b", "train own_system.py --env X", "train", "zoo dqn-cartpole", "runs r=1", "envs CartPole-v1",
    ],
)  # fmt: skip
def test_what_may_stand_where_it_does_is_not_refused(right: str) -> None:
    assert advice(right.split(), COMMANDS) is None
