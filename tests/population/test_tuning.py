"""A search for hyperparameters: its trials are runs, and one that was killed goes on."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import shoal
from shoal.cli.main import main
from shoal.run.options import RunOptions
from shoal.run.population.slots import SLOT_BYTES
from shoal.run.tuning import BEST, SETTINGS, STUDY, Searched, Study, _like, _sampler_seed, _told
from shoal.runtime import memory
from shoal.settings.config import read_file, resolve
from shoal.settings.schedule import linear
from shoal.systems import impala

WORDS = [
    "--env", "CartPole-v1", "--runtime", "serial", "--actors", "1", "--envs", "2", "--unroll", "8", "--hidden", "16",
    "--steps", "1200", "--search", "learning_rate=1e-4:1e-2,gamma",
]  # fmt: skip


@pytest.mark.parametrize("words", [["--study", "deep/s"], []])
def test_without_optuna_the_extra_is_named_and_no_directory_is_left(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "impala", *WORDS, *words]) == 2
    assert "needs Optuna: pip install" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words, says",
    [(["nothing"], "unknown system"), (["impala", "--search", "lerning_rate"], "did you mean 'learning_rate'"),
     ([], "shoal tune needs a system first"), (["impala", "--search", "unroll=x"], "--search takes FIELD"),
     (["impala", "--search", "learning_rate=1e-46:1"], "at least 1.2e-38 (float32)"),
     (["impala", "--search", "unroll=2:1e400"], "as in --search unroll="),
     (["impala", "--trials", "-1"], "--trials expects"), (["impala", "--slots", "2147483648"], "--slots expects")],
)  # fmt: skip
def test_what_cannot_be_searched_is_refused(words: list[str], says: str, capsys: Any) -> None:
    assert main(["tune", *words]) == 2
    assert says in capsys.readouterr().err


def test_a_schedule_keeps_its_shape() -> None:
    assert _like(linear(0.5, 0.25), 1.0) == linear(1.0, 0.5) and _like(0.1, 0.2) == 0.2
    space: dict[str, dict[str, Any]] = {
        "gamma": dict(low=0.9, high=0.999, log=True, one_minus=True),
        "n": dict(low=1, high=9, integer=True),
    }
    assert _told("gamma", space, 0.99) == pytest.approx(0.01) and _told("n", space, 40) == 9


def test_a_trial_may_be_ended_at_nine_moments_before_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At the first row of each tenth that has a return; behind the last step there is nothing to save."""
    told: list[tuple[float, int]] = []
    given: list[Any] = []
    trial = SimpleNamespace(
        number=3, params={}, set_user_attr=lambda name, values: None,
        report=lambda score, part: told.append((score, part)), should_prune=lambda: told[-1][0] < 0.0,
    )  # fmt: skip
    study = SimpleNamespace(ask=lambda: trial, tell=lambda trial, score=None, state=None: given.append(score))
    optuna = SimpleNamespace(samplers=SimpleNamespace(TPESampler=lambda seed: None), trial=None)
    monkeypatch.setattr("shoal.run.tuning._optuna", lambda: optuna)
    monkeypatch.setattr(Study, "open", lambda self: study)
    resolved = resolve(impala, "none", None, {"steps": 1_000})
    ended: list[bool] = []

    def start(*_: Any, observers: Any) -> Any:
        rows = [(50, 1.0), (100, None), (120, 2.0), (190, 3.0), (250, -1.0), (999, 5.0), (1_000, -9.0), (1_010, -9.0)]
        for steps, score in rows:
            row = {"steps": steps} | ({} if score is None else {"episode_return": score})
            ended.append(observers[0](row))
        return SimpleNamespace(report=SimpleNamespace(reason="steps", episode_return=7.0, steps=1_010))

    monkeypatch.setattr("shoal.run.tuning.start", start)
    sentence = Study(tmp_path, "impala", impala, resolved, {}, RunOptions(seed=1)).trial()
    assert told == [(2.0, 1), (-1.0, 2), (5.0, 9)] and [i for i, end in enumerate(ended) if end] == [4]
    assert given == [7.0] and sentence.startswith("trial 3: 7 ")


def test_a_seed_has_any_length(tmp_path: Path) -> None:
    """Optuna's has 32 bits."""
    seeds = [2**32 - 1, 2**32, 2**32 + 1, 2**63 - 1]
    assert _sampler_seed(seeds[0]) == seeds[0] and len({_sampler_seed(seed) for seed in seeds}) == 4
    assert all(0 <= _sampler_seed(seed) < 2**32 for seed in seeds)
    pytest.importorskip("optuna", reason="the extra 'tune' is not installed")
    command = ["tune", "impala", *WORDS, "--trials", "2", "--study", str(tmp_path / "s"), "--seed"]
    assert main([*command, str(2**63 - 1)]) == 0
    found = [json.loads((tmp_path / f"s/trial-000{n}/config.json").read_text())["seed"] for n in (0, 1)]
    assert found == [2**63 - 1, 2**63]


def test_trials_at_once_are_as_many_as_memory_has_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    found: list[int] = []
    monkeypatch.setattr(memory, "available", lambda: 3 * SLOT_BYTES)
    monkeypatch.setattr("shoal.run.tuning._optuna", lambda: None)
    monkeypatch.setattr(Study, "open", lambda self: None)

    def search(self: Study, study: Any, trials: int, slots: int, *_: Any) -> Searched:
        found.append(slots)
        return Searched("", 0, 0)

    monkeypatch.setattr(Study, "_search", search)
    study = Study(tmp_path, "impala", impala, resolve(impala, "none", None, {"steps": 10}), {}, RunOptions())
    for trials, slots in ((9, 3), (9, 4), (2, 10_000)):
        study.search(trials, slots, told.append)
    assert found == [3, 3, 2] and len(told) == 1 and "3 at once instead of 4" in told[0]


@pytest.mark.parametrize("slots", [1, 2])
def test_a_study_goes_on_and_keeps_its_best(slots: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna", reason="the extra 'tune' is not installed")
    path = tmp_path / "s"
    command = ["tune", "impala", *WORDS, "--study", str(path), "--slots", str(slots)]
    assert main([*command, "--trials", "2"]) == 0
    assert main([*command, "--trials", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    trials = [line for line in lines if line.startswith("trial ")]
    assert sorted(line.split(":")[0] for line in trials) == [f"trial {n}" for n in range(4)]
    assert len({line.partition("(")[2] for line in trials}) == 4, "each has values of its own"
    runs = {n: shoal.Run.open(path / f"trial-{n:04d}") for n in range(4)}
    preset = shoal.systems.load("impala").PRESETS["classic"]
    assert runs[0].config["gamma"] == preset.get("gamma", shoal.systems.load("impala").Config().gamma)
    scores = {n: run.report.episode_return for n, run in runs.items() if run.report and run.report.reason == "steps"}
    best = max(scores, key=lambda n: scores[n])
    assert read_file(path / BEST)["gamma"] == runs[best].config["gamma"] and (path / STUDY).is_file()
    assert main([{"8": "4"}.get(word, word) for word in command]) == 2
    assert "trials with another unroll (8, not 4)" in capsys.readouterr().err
    assert lines[-1].startswith(f"best: trial {best}, ")


ATTRIBUTES = {"env": "evil.py:Mine", "learning_rate": 1e-3, "gamma": 0.9}
JOURNALS: dict[str, Any] = {
    "values of other fields": lambda lines: [
        {**line, "user_attr": {"values": ATTRIBUTES}} if "user_attr" in line else line for line in lines],
    "values of other kinds": lambda lines: [
        {**line, "user_attr": {"values": {**ATTRIBUTES, "gamma": "x"}}} if "user_attr" in line else line
        for line in lines],
    "another operation": lambda lines: [*lines, {**lines[-1], "op_code": 99}],
    "no operations": lambda lines: [1, []],
    "a state of nothing": lambda lines: [{**line, "state": "x"} if "state" in line else line for line in lines],
    "a distribution of nothing": lambda lines: [
        {**line, "distribution": "x"} if "distribution" in line else line for line in lines],
}  # fmt: skip


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("optuna", reason="the extra 'tune' is not installed")
    path = tmp_path_factory.mktemp("studies") / "s"
    assert main(["tune", "impala", *WORDS, "--study", str(path), "--trials", "1"]) == 0
    return path


@pytest.mark.parametrize("change", JOURNALS.values(), ids=JOURNALS)
def test_the_journal_of_a_stranger_names_no_code_and_is_told_of_in_a_sentence(
    change: Any, searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(shutil.copytree(searched, tmp_path / "s"))
    lines = [json.loads(line) for line in (path / STUDY).read_text().splitlines()]
    (path / STUDY).write_text("".join(json.dumps(line) + "\n" for line in change(lines)))
    capsys.readouterr()
    assert main(["tune", "impala", *WORDS, "--study", str(path), "--trials", "2"]) in (0, 1)
    told = capsys.readouterr().err
    assert "Traceback" not in told and told.count("\n") <= 3
    assert "evil" not in (path / BEST).read_text()


@pytest.mark.parametrize("content", ["", "\n", "[" * 100_000, "5", "[1]", '{"a": "\x1b[2J"}', "{"])
def test_the_settings_of_a_strangers_study_are_told_of_in_a_sentence(
    content: str, searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(shutil.copytree(searched, tmp_path / "s"))
    (path / SETTINGS).write_text(content)
    capsys.readouterr()
    assert main(["tune", "impala", *WORDS, "--study", str(path), "--trials", "2"]) in (1, 2)
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "\x1b" not in told and len(told) < 1_000


@pytest.mark.parametrize("name", [STUDY, SETTINGS, "best.toml", ".best.toml.tmp", "trial-0002"])
@pytest.mark.parametrize("hard", [False, True])
def test_a_search_does_not_write_through_a_link(
    name: str, hard: bool, searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(shutil.copytree(searched, tmp_path / "s"))
    outside = tmp_path / "outside"
    file = path / name
    file.rename(outside) if file.exists() else outside.write_text("mine\n")
    file.hardlink_to(outside) if hard else file.symlink_to(outside)
    before = outside.read_bytes()
    assert main(["tune", "impala", *WORDS, "--study", str(path), "--trials", "2"]) == 2
    assert f"{name}' " in (told := capsys.readouterr().err) and "link" in told and outside.read_bytes() == before
