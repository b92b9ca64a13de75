"""Every number that any command takes, given what is none: an exit code and a sentence, no traceback and no hang."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
from collections.abc import Collection, Iterator
from pathlib import Path
from types import FrameType

import pytest

from cli.test_numbers import TABLES, kinds, numeric
from shoal import systems
from shoal.cli.main import main

WORDS = ("nan", "inf", "-1", "0", "1e308", "99999999999", "\uff11\uff12", "word", "")
SENTENCES = 3
SECONDS = 60  # in which any of them ends on a machine that others use, too
SMALL = "--env CartPole-v1 --preset none --steps 24 --quiet"
ON_PENDULUM = "--env Pendulum-v1 --preset none --steps 24 --quiet"
LEARNERS = {  # system -> what makes it small and quick
    **dict.fromkeys(("dqn", "apex-dqn", "r2d2", "rainbow", "gorila", "downpour"), SMALL),
    **dict.fromkeys(("async-q", "async-sarsa", "async-nstep-q", "impala", "a3c", "unreal", "recurrent-ppo"), SMALL),
    **dict.fromkeys(("apex-dpg", "d4pg", "qt-opt"), ON_PENDULUM),
    "r2d3": SMALL + " --demo-ratio 0", "dd-ppo": SMALL, "es": SMALL,
}  # fmt: skip


def fields(system: str, known: Collection[tuple[type, str]] = ()) -> list[str]:
    """The flags of a system's settings that take numbers, but for those of the classes that are ``known``."""
    Config = systems.load(system).Config
    names = {name for kind in (int, float) for name, _ in numeric(Config, kind)}
    return sorted("--" + name.replace("_", "-") for name in names if (owner(Config, name), name) not in known)


def owner(Config: type, field: str) -> type:
    """The class that says a field."""
    return next(one for one in Config.__mro__ if field in vars(one).get("__annotations__", {}))


def fields_once() -> dict[str, list[str]]:
    """``fields`` of all systems, those that several share of the first alone; ``SHOAL_SWEEP=all``: of each."""
    known: set[tuple[type, str]] = set()
    found = {}
    for system in systems.SYSTEMS:
        found[system] = fields(system, () if os.environ.get("SHOAL_SWEEP") == "all" else known)
        Config = systems.load(system).Config
        known |= {(owner(Config, field.name), field.name) for field in dataclasses.fields(Config)}
    return found


def own(*tables: str) -> list[str]:
    """The flags of some tables of ``TABLES`` that take numbers."""
    return sorted({f"--{name}" for table in tables for name, hint in TABLES[table].items() if kinds(hint)})


RUN = "{runs}/run"
TRAIN = "train dqn --runtime serial " + SMALL + " --hidden 4"
PBT = "train pbt --of dqn --population 2 --slots 1 --mutate learning_rate=0.001:0.01 --hidden 4 --actors 1 " + SMALL
TUNE = "tune dqn --trials 1 --runtime serial --hidden 4 " + SMALL
PLAN = "plan dqn --costs {runs}/costs.json --hidden 4 --env CartPole-v1 --preset none --json"
COMMANDS = {  # name -> what is called, and the flags of its own that take numbers
    "train": (TRAIN, own("shoal.run.options.FLAGS", "shoal.run.monitors.FLAGS")),
    "evaluated": (TRAIN + " --eval-every 8", ["--eval-episodes", "--eval-max-steps"]),
    "alert": (TRAIN + " --alert true", ["--alert-after"]),
    "resume": (
        f"resume {RUN} --quiet",
        own("LIMITS", "shoal.run.options.FLAGS", "shoal.run.monitors.FLAGS") + fields("dqn"),
    ),
    "eval": (f"eval {RUN} --episodes 1", own("shoal.cli.runs.FLAGS.eval")),
    "compare": (f"compare {RUN}", own("shoal.cli.runs.FLAGS.compare")),
    "record": (f"record {RUN} --out {{here}}/set", own("shoal.cli.record.FLAGS")),
    "show": (f"record --show {RUN}", own("shoal.cli.record.FLAGS")),
    "pbt": (PBT, own("shoal.cli.population.FLAGS")),
    "tune": (TUNE, own("shoal.cli.tune.TUNE_FLAGS")),
    "plan": (
        PLAN + " --actors 1",
        [*own("shoal.planning.command.FLAGS"), "--actors", "--learners", "--nodes", "--envs"],
    ),
    "profile": (
        "profile dqn --runtime serial --seconds 0.01 --hidden 4 " + SMALL,
        own("shoal.analysis.profile.PROFILE_FLAGS"),
    ),
    "profile-run": (f"profile {RUN} --seconds 0.01 --quiet", own("shoal.analysis.profile.PROFILE_FLAGS")),
    "watch": (f"watch {RUN}", own("shoal.cli.watch.FLAGS")),
}
INSIDE = {  # numbers within a word: a command, and words whose ``{}`` is the number
    "train": (TRAIN, ["--env-kwargs a={}", "--log-args wandb.a={}", "--learning-rate linear({},0.1)", "--hidden 4 {}",
                      "--seeds {}", "--seeds 0..{}", "--device cuda:{}"]),
    "pbt": (PBT, ["--mutate learning_rate={}:1", "--mutate learning_rate=0.001:{}", "--mutate gamma={}"]),
    "tune": (TUNE, ["--search learning_rate={}:1", "--search unroll=1:{}"]),
    "plot": (f"plot {RUN}", ["--x {}"]),
    "keyboard": ("record keyboard --env CartPole-v1 --out {here}/keys", ["--keys left={}", "--noop {}"]),
    "plan": (PLAN, ["--actors 1,{}", "--actors 1,2,{},...", "--envs {},{}"]),
}  # fmt: skip


SETTINGS = fields_once()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and costs that were measured once."""
    folder = tmp_path_factory.mktemp("swept")
    assert main([*TRAIN.split(), "--run-dir", f"{folder}/run"]) == 0
    words = "plan dqn --actors 1 --seconds 0.5 --hidden 4 --env CartPole-v1 --preset none --json --save-costs"
    assert main([*words.split(), f"{folder}/costs.json"]) == 0
    return folder


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """TimeoutError in what takes longer."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Call a command; returns what is wrong with how it ended, or nothing."""
    capsys.readouterr()
    try:
        with within(SECONDS):
            code = main(words)
    except TimeoutError:
        return "it did not end"
    except Exception as error:  # noqa: BLE001 - which is what is looked for
        return f"{type(error).__name__}: {error}"
    err = capsys.readouterr().err
    if code not in (0, 1, 2) or (code == 0 and "--watch" in words):
        return f"exit code {code}"
    if err.count("\n") > SENTENCES or len(err) > 1_200 or "Traceback" in err:
        return f"it says {err}"
    return "" if code == 0 or err else "it says nothing"


def swept(
    command: str, flags: list[str], runs: Path, here: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> list[str]:  # fmt: skip
    """What is wrong with a command, given each of the words for each of its flags."""
    wrong = []
    for n, flag in enumerate(flags):
        for m, word in enumerate(WORDS):
            place = here / f"{n}-{m}"
            place.mkdir()
            monkeypatch.chdir(place)
            shutil.copytree(runs, place / "runs")
            base = [word.format(runs=place / "runs", here=place) for word in command.split()]
            words = [part.replace("{}", word) for part in flag.split()] if "{}" in flag else [flag, word]
            if words[0] in base:
                at = base.index(words[0])
                following = [i for i, part in enumerate(base) if i > at and part.startswith("--")]
                base = base[:at] + base[min(following, default=len(base)) :]
            if words[0] in ("--steps", "--eval-max-steps") and base[0] in ("train", "resume") and "pbt" not in base:
                base += ["--seconds", "0.5"]
            if found := check([*base, *words], capsys):
                wrong.append(f"shoal {' '.join(map(repr, [*base, *words]))}: {found}")
            shutil.rmtree(place)
    return wrong


def nobody(*args: object, **kwargs: object) -> int:
    """In place of a page that would be served until a signal."""
    return 0


@pytest.mark.timeout(1_000)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_flag_of_a_command_ends_it_in_order(
    command: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.cli.watch.serve", nobody)
    words, flags = COMMANDS[command]
    assert flags
    assert swept(words, flags, runs, tmp_path, capsys, monkeypatch) == []


@pytest.mark.timeout(1_000)
@pytest.mark.parametrize("command", INSIDE)
def test_a_number_within_a_word_ends_a_command_in_order(
    command: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert swept(*INSIDE[command], runs, tmp_path, capsys, monkeypatch) == []


@pytest.mark.timeout(2_000)
@pytest.mark.parametrize("system", SETTINGS)
def test_a_setting_of_a_system_ends_its_training_in_order(
    system: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = f"train {system} --runtime serial {LEARNERS[system]}"
    assert swept(command, SETTINGS[system], runs, tmp_path, capsys, monkeypatch) == []
