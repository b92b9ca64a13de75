"""Values as newcomers write them: devices, lists in brackets, how many seeds, environments of their own."""

from pathlib import Path

import pytest

import shoal
from shoal.cli import seeds
from shoal.cli.main import main
from shoal.errors import UsageError
from shoal.run import Run, RunOptions
from shoal.settings.done_otherwise import in_python
from shoal.settings.flags import expect, listed, unknown
from shoal.settings.ranges import Device


@pytest.mark.parametrize(
    ("given", "meant"),
    [("gpu", "cuda"), ("GPU", "cuda"), ("CUDA", "cuda"), ("nvidia", "cuda"), ("cudaa", "cuda"), ("cuda0", "cuda:0"),
     ("gpu:1", "cuda:1"), ("0", "cuda:0"), ("3", "cuda:3"), ("CPU", "cpu"), ("-1", "cpu"), ("cpuu", "cpu")],
)  # fmt: skip
def test_a_device_is_answered_with_its_name_here(given: str, meant: str) -> None:
    with pytest.raises(UsageError) as refused:
        expect(Device, given, "--device")
    assert str(refused.value).startswith("--device expects auto, cpu, cuda or cuda:N, found ")
    assert str(refused.value).endswith(f": did you mean '{meant}'?")


@pytest.mark.parametrize("given", ["mps", "MPS", "tpu", "xla"])
def test_a_device_that_nothing_here_computes_on_is_said_to_be_one(given: str) -> None:
    with pytest.raises(UsageError, match="Shoal computes on CPUs and on GPUs with CUDA; did you mean 'cpu'"):
        expect(Device, given, "--device")


@pytest.mark.parametrize("words", [["64", "32"], ["64,32"], ["[64, 32]"], ["[64,", "32]"], ["(64,32)"], ["(64, 32,)"]])
def test_several_values_may_stand_in_brackets(words: list[str]) -> None:
    assert listed(words) == ["64", "32"]


@pytest.mark.parametrize("words", [["[64"], ["64]"], ["{64}"], ["[[64]]"]])
def test_other_brackets_stay_and_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "dqn", "--hidden", *words]) == 2
    assert "--hidden expects integers of at least 1, found '" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "told"), [([3], "3 runs would be --seeds 0 1 2"), ([1], ""), ([0], ""), ([1234], ""), ([3, 4], "")]
)
def test_one_seed_that_may_be_a_number_of_seeds_is_told_of_before_it_is_trained(
    given: list[int], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []

    def start(options: RunOptions) -> Run:
        said.append(capsys.readouterr().err)
        return Run(tmp_path, "dqn", {})

    assert seeds.train(RunOptions(), given, start, lambda run: 0) == 0
    assert told in said[0] and bool(said[0]) is bool(told)


@pytest.mark.parametrize("given", [["[0,", "1]"], ["0", "1"], ["0,1"], ["0,", "1"]])
def test_seeds_may_stand_in_brackets(given: list[str]) -> None:
    assert seeds.read({"seeds": given}) == [0, 1]


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ("", "'env' expects the name of an environment, found ''"), (" ", "'env' expects the name of an environment"),
        ("my_module.MyEnv", "; did you mean 'my_module:MyEnv'?"), ("a.b.MyEnv", "; did you mean 'a.b:MyEnv'?"),
        ("no_such.py.MyEnv", "; did you mean 'no_such.py:MyEnv'?"), ("json/MyEnv", "; did you mean 'json:MyEnv'?"),
        ("no_such.py::MyEnv", "; did you mean 'no_such.py:MyEnv'?"), ("no_such.py", "is a file: say which"),
        ("no_such_package:CartPole-v1", "; did you mean 'CartPole-v1'?"), ("gim:Pendulum-v1", "'Pendulum-v1'?"),
        ("CartPol-v1", "unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
    ],
)  # fmt: skip
def test_an_environment_is_answered_with_what_was_meant(env: str, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        shoal.train("dqn", env, steps=8, runtime="serial", quiet=True)
    assert told in str(refused.value) and "MODULE" not in str(refused.value)


@pytest.mark.parametrize(
    ("shell", "python"),
    [
        ("one by one: --hidden 64 64, --torso", "one by one: hidden=(64, 64), torso=..."),
        ("by --steps, --seconds or --until-return", "by steps=..., seconds=... or until_return=..."),
        ("--no-check and --runtime serial repeat", "check=False and runtime='serial' repeat"),
        ("shoal eval RUN --video FILE films", "shoal eval RUN --video FILE films"),
    ],
)
def test_a_sentence_of_flags_is_one_of_arguments_in_python(shell: str, python: str) -> None:
    assert in_python(shell) == python


def test_the_network_s_settings_are_told_in_the_words_of_who_asks() -> None:
    assert "--hidden 64 64" in str(unknown("flag", "policy_kwargs", [], "dqn"))
    assert "hidden=(64, 64)" in str(unknown("setting", "policy_kwargs", [], "dqn"))
