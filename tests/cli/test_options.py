"""The options of a run are said once: ``shoal.train``, the command line and config.json agree with ``RunOptions``."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import pytest

import shoal
from shoal.api import UsageError
from shoal.cli.help import of_command, of_flags
from shoal.cli.main import COMMANDS, main
from shoal.cli.runs import FLAGS as commands_of_runs
from shoal.cli.tune import TUNE_FLAGS
from shoal.run import RunOptions, resume, train
from shoal.run.evaluation import Evaluation
from shoal.run.keywords import takes_options
from shoal.run.options import FLAGS, REQUIRED_KEYS, RESUMABLE
from shoal.settings import done_otherwise, other_names, other_python_names as in_python
from shoal.settings.field_docs import field_docs
from shoal.settings.fields import RUN_FLAGS, RUN_OPTIONS
from shoal.settings.flags import coerce, divide, options, split
from shoal.settings.other_names import ALIASES, ELSEWHERE, SETTINGS
from shoal.settings.ranges import NonNegative
from shoal.settings.run_options import Option, flags, resumable
from shoal.systems import SYSTEMS, dqn, load

EVERYTHING = RunOptions(
    runtime="serial", run_dir="somewhere", seed=3, seconds=2.5, until_return=-1.0, hang_timeout=0.0,
    evaluation=Evaluation(100, 3, True, True), checkpoint_every=7.0, checkpoint_replay_gb=0.5, init_from="/else/where",
    log=("wandb", "mlflow"), quiet=False,
)  # fmt: skip


BESIDE = ("observers", "alert", "alert_after", "watch", "trust")


def fields() -> dict[str, Any]:
    default = RunOptions()
    return {f.name: getattr(default, f.name) for f in dataclasses.fields(RunOptions)}


def test_train_takes_every_option_with_its_default() -> None:
    parameters = inspect.signature(train).parameters
    taken = {name: parameters[name].default for name in fields()}
    assert taken == fields() and fields()["evaluation"].every == 0
    assert list(parameters) == ["system", "env", "preset", "config", *BESIDE, *fields(), "settings"]
    told = inspect.getdoc(train) or ""
    assert all(f"\n{name}: " in told for name in fields())
    assert field_docs(RunOptions).keys() == fields().keys()


def test_the_command_line_has_a_flag_for_every_option_and_tells_its_default() -> None:
    expected = {name.replace("_", "-") for name in fields()} - {"evaluation"}
    assert FLAGS.keys() == expected | {"eval-every", "eval-episodes", "eval-sampled", "eval-video", "eval-max-steps"}
    told = {flag: text for text in re.split(r"\n {6}--", of_command("train")) for flag in text.split()[:1]}
    defaults = {flag: found[1] for flag in FLAGS if (found := re.search(r"\(default\s+(\S+)\)", told[flag]))}
    assert defaults == {
        "hang-timeout": "60", "checkpoint-every": "300", "checkpoint-replay-gb": "8", "seed": "0",
        "eval-every": "0", "eval-episodes": "10", "eval-max-steps": "0", "runtime": "local",
    }  # fmt: skip
    resumed = re.findall(r"^ {6}--([a-z-]+)", of_command("resume"), re.MULTILINE)
    assert {"hang-timeout", "eval-every", "log-args"} < {*resumed} and not {"seed", "init-from"} & {*resumed}


def test_flags_become_options() -> None:
    words = (
        "--runtime serial --run-dir somewhere --seed 3 --seconds 2.5 --until-return=-1 --hang-timeout 0 "
        "--eval-every 100 --eval-episodes 3 --eval-sampled --eval-video --checkpoint-every 7 "
        "--checkpoint-replay-gb 0.5 --init-from /else/where --log wandb mlflow"
    )
    assert RunOptions.from_flags(options(split(words.split()), FLAGS, "train")) == EVERYTHING
    assert RunOptions.from_flags({}) == RunOptions(quiet=False)
    mine, rest = divide(split(["--no-eval-sampled", "--log", "none", "--no-quiet", "--no-dueling"]), FLAGS)
    assert options(mine, FLAGS, "resume") == {"eval-sampled": False, "log": [], "quiet": False}
    assert rest == [("--no-dueling", [])], "a system's"
    with pytest.raises(UsageError, match="unknown flag '--no-seed' of shoal resume; did you mean '--seed'"):
        options(split(["--no-seed", "3"]), FLAGS, "resume")
    with pytest.raises(UsageError, match="--no-quiet expects no value, found true"):
        options(split(["--no-quiet", "true"]), FLAGS, "resume")
    assert RunOptions.from_flags({"quiet": True}) == RunOptions(quiet=True)
    assert RunOptions.from_flags({"preset": "none"}, seconds=15.0) == RunOptions(quiet=False, seconds=15.0)
    assert RunOptions.from_flags({"seconds": 2.0}, seconds=15.0).seconds == 2.0


def test_config_json_keeps_what_a_resumed_run_needs() -> None:
    facts = json.loads(json.dumps(EVERYTHING.to_json(1_000)))
    assert set(REQUIRED_KEYS) <= facts.keys()
    assert facts["stop"] == {"steps": 1_000, "seconds": 2.5, "updates": None, "episode_return": -1.0}
    assert RunOptions.from_json(facts, run_dir="somewhere", quiet=False) == EVERYTHING
    assert RunOptions.from_json(facts, seconds=9.0).seconds == 9.0
    del facts["log"]  # a run of a version that had no back ends
    assert RunOptions.from_json(facts).log == ()


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("seed", -1, "'seed' expects an integer of at least 0, found -1"),
        ("seconds", 0, "'seconds' expects a finite number above 0 or none, found 0"),
        ("hang_timeout", -1, "'hang_timeout' expects a finite number of at least 0, found -1"),
        ("checkpoint_every", "often", "'checkpoint_every' expects a finite number of at least 0, found 'often'"),
        ("until_return", float("nan"), "'until_return' expects a number or none, found nan"),
        ("runtime", "locl", "unknown runtime 'locl'; did you mean 'local'?"),
    ],
)
def test_what_is_out_of_range_is_said_in_one_sentence(name: str, value: Any, says: str) -> None:
    with pytest.raises(UsageError) as error:
        RunOptions(**{name: value})
    assert str(error.value) == says


@pytest.mark.parametrize(
    "given, says",
    [
        ({"system": 5}, "'system' expects a name of `shoal systems`, of a module or of a .py file, found 5"),
        ({"system": dqn}, "; did you mean 'dqn'?"),
        ({"system": dqn.Config}, "; did you mean 'dqn'?"),
        ({"config": dqn.Config()}, "found a Config: shoal.train takes one in place of the system, as in shoal.train("),
        ({"eval_every": "x"}, "'every' of an Evaluation expects an integer of at least 0, found 'x'"),
        (
            {"eval_every": 5, "evaluation": Evaluation(every=5)},
            "'eval_every' is a part of 'evaluation', which is given as well",
        ),
        (
            {"config": {"steps": 3}},
            "'config' expects the path of a TOML or YAML file, found {'steps': 3}: single ",
        ),
        ({"preset": None}, "'preset' expects text, found None"),
        ({"observers": 5}, "'observers' expects functions, found 5"),
        ({"observers": "ab"}, "'observers' expects functions, found 'ab'"),
        ({"evaluation": 100}, "'evaluation' expects shoal.Evaluation(every=N), found 100"),
        ({"evaluation": 0}, "'evaluation' expects shoal.Evaluation(every=N), found 0"),
        ({"log": 5}, "'log' expects words, found 5"),
        ({"log": "tensorbord"}, "unknown log back end 'tensorbord'; did you mean 'tensorboard'?"),
        ({"run_dir": 5}, "'run_dir' expects text or Path or none, found 5"),
    ],
)
def test_a_wrong_argument_of_train_is_one_sentence(given: dict[str, Any], says: str, tmp_path: Path) -> None:
    fine: dict[str, Any] = {"system": "dqn", "env": "CartPole-v1", "runtime": "serial", "run_dir": tmp_path / "r"}
    with pytest.raises(UsageError) as error:
        train(**{**fine, **given})
    assert says in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "given, says",
    [
        ({"every": "often"}, "'every' of an Evaluation expects an integer of at least 0, found 'often'"),
        (
            {"every": 100, "episodes": 2.5},
            "'episodes' of an Evaluation expects an integer from 1 to 1000000, found 2.5",
        ),
        ({"every": 100, "sampled": 1}, "'sampled' of an Evaluation expects true or false, found 1"),
    ],
)
def test_a_wrong_evaluation_is_one_sentence(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as error:
        Evaluation(**given)
    assert str(error.value) == says
    assert Evaluation(every="100") == Evaluation(every=100)  # type: ignore[arg-type]


def test_one_observer_needs_no_list(tmp_path: Path, fake: str) -> None:
    rows: list[Any] = []
    train(Path(fake), env="CartPole-v1", runtime="serial", run_dir=tmp_path / "r", observers=rows.append)
    assert rows and rows[-1]["steps"] >= 400


def test_settings_know_the_options_of_a_run() -> None:
    flags = {flag.replace("-", "_") for flag in FLAGS} | {"preset", "config"}
    assert flags == RUN_FLAGS
    arguments = inspect.signature(train).parameters.keys() - {"env", "settings"}
    assert arguments | flags | {"trust"} == RUN_OPTIONS
    of_resume = inspect.signature(resume).parameters.keys()
    assert of_resume >= set(RESUMABLE) and of_resume - RUN_OPTIONS == {"path", "steps", "env", "settings"}


@dataclass(frozen=True, kw_only=True)
class LongerTable(RunOptions):
    """A table with one option more."""

    patience_here: Annotated[NonNegative | None, Option("stop.patience", resumable=True)] = 2.5
    """Seconds of patience."""


def test_an_option_of_one_line_is_a_flag_a_keyword_a_json_key_and_a_line_of_help() -> None:
    """And what ``resume`` takes: nothing else names an option."""

    def train_so(system: str, **settings: Any) -> None:
        """Train it."""

    def resume_so(path: str, **settings: Any) -> None:
        """Go on."""

    flag = flags(LongerTable)["patience-here"]
    assert options(split(["--patience-here", "3"]), {flag.name: flag.type}, "train") == {"patience-here": 3.0}
    with pytest.raises(UsageError, match="--patience-here expects a finite number of at least 0, found -1"):
        options(split(["--patience-here=-1"]), {flag.name: flag.type}, "train")
    assert of_flags([flag]) == "      --patience-here X         Seconds of patience. (default 2.5)\n"
    assert LongerTable.divide({"patience_here": 1.0, "gamma": 0.9}) == ({"patience_here": 1.0}, {"gamma": 0.9})
    with pytest.raises(UsageError, match="'patience_here' expects a finite number of at least 0 or none, found 'x'"):
        LongerTable(patience_here="x")  # type: ignore[arg-type]
    kept = json.loads(json.dumps(LongerTable(patience_here=7).to_json(10)))
    assert kept["stop"]["patience"] == 7 and LongerTable.from_json(kept) == LongerTable(patience_here=7)
    del kept["stop"]["patience"]  # of a version before
    assert LongerTable.from_json(kept) == LongerTable()
    assert [*resumable(LongerTable)] == [*RESUMABLE, "patience_here"]
    of_train = inspect.signature(takes_options(LongerTable)(train_so)).parameters["patience_here"]
    assert of_train.kind is of_train.KEYWORD_ONLY and of_train.default == 2.5
    of_resume = inspect.signature(takes_options(LongerTable, unset=True)(resume_so)).parameters
    assert of_resume["patience_here"].default is None and "seed" not in of_resume
    assert "patience_here: Seconds of patience." in (train_so.__doc__ or "")


def test_help_of_a_function_keeps_types_and_its_last_argument_and_wraps_lines() -> None:
    def so(system: str, seed: int = 7, **settings: Any) -> None:
        """Train it."""

    taken = inspect.signature(takes_options(LongerTable)(so)).parameters
    assert list(taken)[:2] == ["system", "seed"] and taken["seed"].default == 7, "its own stays"
    assert list(taken)[-1] == "settings" and taken["settings"].kind is inspect.Parameter.VAR_KEYWORD
    assert taken["patience_here"].annotation == (float | None) and taken["runtime"].annotation is str
    head, _, lines = (so.__doc__ or "").partition("\n\nOptions of the run:\n\n")
    told = lines.splitlines()
    assert head == "Train it." and max(map(len, told)) <= 116 and not any(line.startswith("seed:") for line in told)
    names = [line.partition(":")[0] for line in told if not line.startswith("    ")]
    assert names == [name for name in taken if name not in ("system", "seed", "settings")]
    assert len(told) > len(names), "some go on in a further line"


def test_a_flag_has_the_bare_type_of_its_option_with_its_range() -> None:
    found = {name: flag.type for name, flag in flags(LongerTable).items()}
    assert found["runtime"] is str is found["run-dir"] and found["log"] is list is found["log-args"]
    assert found["quiet"] is bool and found["until-return"] is float
    ranges = get_args(NonNegative)
    assert get_args(found["hang-timeout"]) == ranges == get_args(found["patience-here"])


@pytest.mark.parametrize("given, near", [("hang_timeot", "hang_timeout"), ("checkpoint_evry", "checkpoint_every")])
def test_a_misspelt_option_is_refused_with_the_nearest_name(given: str, near: str, tmp_path: Path, fake: str) -> None:
    arguments: dict[str, Any] = {"env": "CartPole-v1", "runtime": "serial", "run_dir": tmp_path / "r", "quiet": True}
    misspelt: dict[str, Any] = {given: 1}
    with pytest.raises(UsageError, match=f"unknown setting '{given}' of .*; did you mean '{near}'"):
        train(Path(fake), **arguments, **misspelt)
    train(Path(fake), **arguments)
    with pytest.raises(UsageError, match=f"unknown setting '{given}' of .*; did you mean '{near}'"):
        resume(tmp_path / "r", steps=800, **misspelt)


def test_values_take_their_own_type() -> None:
    how = RunOptions(seconds=3, log=["wandb"], run_dir=Path("r"))  # type: ignore[arg-type]
    assert isinstance(how.seconds, float) and how.log == ("wandb",) and how.run_dir == Path("r")


@pytest.mark.parametrize(
    ("system", "theirs", "ours"),
    [
        ("dqn", "total-timesteps", "steps"), ("impala", "num-workers", "actors"), ("ppo", "n-steps", "unroll"),
        ("dqn", "n-steps", "n-step"), ("dqn", "buffer-size", "replay"), ("a3c", "ent-coef", "entropy-cost"),
        ("ppo", "vf_coef", "value-cost"), ("dqn", "batch_size", "batch"), ("ppo", "batch_size", "minibatches"),
        ("rainbow", "learning-starts", "min-replay"), ("ppo", "lambda", "gae-lambda"), ("ppo", "clip-range", "clip"),
        ("ppo", "tensorboard-log", "run-dir"), ("dqn", "eval-freq", "eval-every"), ("es", "pop-size", "pairs"),
    ],
)  # fmt: skip
def test_the_names_of_other_libraries_are_understood(
    system: str, theirs: str, ours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", system, f"--{theirs}", "1"]) == 2
    assert f"did you mean '--{ours}'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("enjoy runs/a", "did you mean 'eval'?"), ("Play runs/a", "did you mean 'eval'?"),
        ("export runs/a --format onnx", "did you mean '--to'?"),
        ("eval runs/a --n-episodes 3", "did you mean '--episodes'?"),
        ("train dqn --env CartPole-v1,Pendulum-v1", "a run has one environment"),
    ],
)  # fmt: skip
def test_commands_and_their_flags_are_understood_too(
    words: str, told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)  # a path that is not there is told first
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert told in capsys.readouterr().err


def test_commands_of_others_lead_to_commands_and_flags_to_flags_of_a_command() -> None:
    assert not set(other_names.COMMANDS) & set(COMMANDS) and {
        c.split()[0] for c in other_names.COMMANDS.values()
    } <= set(COMMANDS)
    flags = {flag for of in commands_of_runs.values() for flag in of} | set(TUNE_FLAGS)
    assert set(other_names.FLAGS) <= flags and not {o for os in other_names.FLAGS.values() for o in os} & flags


def test_a_section_of_a_file_is_told_that_there_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.toml").write_text("[dqn]\nlearning_rate = 1e-3\n")
    assert main(["train", "dqn", "--config", str(tmp_path / "a.toml")]) == 2
    assert "'dqn' is a section, and settings are keys at the top" in capsys.readouterr().err


def test_a_name_written_as_a_class_is_answered_with_how_it_is_trained() -> None:
    for name in ("PPO", "PPOConfig"):
        with pytest.raises(AttributeError, match=r"shoal.train\('recurrent-ppo', env=...\) trains it$"):
            getattr(shoal, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'SAC': .*own_sac"):
        shoal.SAC  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute 'Zzz'$"):
        shoal.Zzz  # noqa: B018


def test_names_of_other_libraries_are_answered_with_what_does_it_here() -> None:
    run = shoal.Run(Path("runs/a"), "dqn", {"env": "CartPole-v1"})
    policy = shoal.load("zoo:dqn-cartpole")
    for thing, known in ((shoal, in_python.OF_SHOAL), (run, in_python.OF_RUN), (policy, in_python.OF_POLICY)):
        assert not [name for name in known if hasattr(thing, name)]
        for name, told in known.items():
            with pytest.raises(AttributeError, match=f"no attribute '{name}': {re.escape(told)}$"):
                getattr(thing, name)
        with pytest.raises(AttributeError, match=r"no attribute 'zzz'$"):
            getattr(thing, "zzz")  # noqa: B009
    assert repr(copy.copy(policy)) == repr(policy) and pickle.loads(pickle.dumps(policy)).version == policy.version


@pytest.mark.parametrize(
    ("program", "told"),
    [("from shoal import PPO", r"shoal.train\('recurrent-ppo', env=...\) trains it"),
     ("from shoal import SAC", "own_sac"), ("from shoal import ReplayBuffer", "replay=... says how many"),
     ("import shoal.common", "shoal.building"), ("from shoal.common.env_util import make_vec_env", "shoal.building")],
)  # fmt: skip
def test_an_import_of_another_library_s_name_is_answered(program: str, told: str) -> None:
    with pytest.raises(ImportError, match=f"^cannot import '.*' from shoal: .*{told}"):
        exec(program)
    for other in ("import shoal.no_such_module", "from shoal import NoSuchName"):
        with pytest.raises(ImportError, match=r"No module named|cannot import name"):
            exec(other)


def test_a_policy_that_is_called_acts() -> None:
    policy = shoal.load("zoo:dqn-cartpole")
    assert policy(np.zeros(4, np.float32)) == policy.act(np.zeros(4, np.float32)) in (0, 1)


def test_the_environment_may_be_the_second_argument(tmp_path: Path) -> None:
    run = shoal.train("dqn", "MountainCar-v0", steps=40, runtime="serial", run_dir=tmp_path / "r", quiet=True)
    assert run.config["env"] == "MountainCar-v0"
    with pytest.raises(TypeError, match="env"):
        shoal.train("dqn", "CartPole-v1", env="MountainCar-v0")  # type: ignore[call-overload]  # twice


@pytest.mark.parametrize(
    ("words", "told"),
    [("--norm-adv", "always normalise advantages"), ("--framework torch", "written in PyTorch alone"),
     ("--vec_env dummy", "--envs, --actors"), ("--save-model", "always saves its policy"),
     ("--n-trials 9", "shoal tune"), ("--step-per-epoch 9", "--steps, --seconds or --until-return"),
     ("--train-for-seconds 9", "did you mean '--seconds'?"), ("--reward-threshold 9", "did you mean '--until-return'?"),
     ("-n 1000", "unknown flag '-n' of recurrent-ppo: flags are whole words"),
     ("--env-config {}", "did you mean '--env-kwargs'?"), ("--wandb-entity me", "did you mean '--log-args'?")],
)  # fmt: skip
def test_a_setting_that_is_not_needed_here_is_answered_with_why(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "ppo", "--env", "CartPole-v1", *words.split()]) == 2
    assert told in capsys.readouterr().err


def test_no_name_of_ours_is_taken_for_another() -> None:
    fields = {f.name for module in SYSTEMS for f in dataclasses.fields(load(module).Config)} | set(RUN_FLAGS)
    assert not [name for others in SETTINGS.values() for name in others if name in fields]
    assert not set(SETTINGS) - fields, "each is a setting or an option"
    assert not set(done_otherwise.NOT_NEEDED) & (fields | {name for others in SETTINGS.values() for name in others})
    assert not (set(ALIASES) | set(ELSEWHERE)) & set(SYSTEMS)


def test_ppo_is_recurrent_ppo() -> None:
    assert load("ppo") is load("recurrent-ppo")


@pytest.mark.parametrize("name", ["sac", "TD3", "muzero", "appo"])
def test_a_system_of_another_library_is_answered_with_what_serves(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", name]) == 2
    assert ELSEWHERE[name.lower()] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "number"), [("10k", 10_000), ("2M", 2_000_000), ("2m", 2_000_000), ("1.1M", 1_100_000), ("1e6", 1_000_000)]
)
def test_whole_numbers_have_suffixes(text: str, number: int) -> None:
    assert coerce(int, text) == number


@pytest.mark.parametrize("text", ["k", "10kk", "1.00001k", "3x", "M2"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        coerce(int, text)


@pytest.mark.parametrize("command", ["train dqn --env CartPole-v1 --run-dir", "draw dqn --env CartPole-v1 --output"])
def test_addresses_are_no_directories(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), "s3://bucket/run.svg", *(["--steps", "100"] if "train" in command else [])]) == 2
    assert "'s3://bucket/run.svg' is an address" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("asked", "near"), [("PPO", "recurrent-ppo"), ("DQN", "dqn"), ("Impala", "impala")])
def test_system_written_as_a_class_elsewhere_is_suggested(asked: str, near: str) -> None:
    with pytest.raises(UsageError, match=rf"unknown system '{asked}'; did you mean '{near}'\?"):
        shoal.systems.load(asked)


def test_a_home_directory_that_no_shell_has_put_in_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in ("train dqn --steps 100 --run-dir=~/run", "train dqn --steps 100 --run-dir ~", "runs ~/mine"):
        assert main(words.split()) == 2
        assert "begins with ~, which only a shell replaces" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
