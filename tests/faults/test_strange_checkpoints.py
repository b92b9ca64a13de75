"""Checkpoints that match their manifest and hold something else, or that are very many: a sentence or three."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from restated import put, restate

import shoal
from shoal.cli.main import main
from shoal.records import checkpoint, checkpoint_state as state_files
from shoal.records.checkpoint import Checkpoint, Unloadable
from shoal.records.checkpoint_params import newest_params
from shoal.runtime.launch import MAX_UNLOADABLE, Launch, run_from_newest
from shoal.settings.config import read_file

PARAMS = "params-params"
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has published nothing but its checkpoint."""
    path = tmp_path_factory.mktemp("runs") / "r"
    shoal.train(
        "impala", run_dir=path, steps=60, env="CartPole-v1", runtime="serial", preset="none", actors=1, envs=2,
        hidden=(4,), unroll=5, seed=1,
    )  # fmt: skip
    (path / "params.json").unlink()
    return path


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(made, tmp_path / "r"))


def manifest(change: Callable[[dict[str, Any]], object]) -> Change:
    def apply(run: Path) -> None:
        file = newest(run) / "manifest.json"
        facts = json.loads(file.read_text())
        change(facts)
        file.write_text(json.dumps(facts))

    return apply


def newest(run: Path) -> Path:
    return max((run / checkpoint.FOLDER).iterdir())


def divided(*names: str, channels: Any = None) -> Change:
    """The parameters as the parts of several writers."""

    def apply(run: Path) -> None:
        for suffix in (".json", ".safetensors"):
            for name in names:
                shutil.copy(newest(run) / f"{PARAMS}{suffix}", newest(run) / f"{PARAMS}.{name}{suffix}")
        files = {f"{PARAMS}.{name}{s}": f"{PARAMS}{s}" for name in names for s in (".json", ".safetensors")}
        listed = {file: written(newest(run) / file) for file in files}

        def restated(facts: dict[str, Any]) -> None:
            others = {file: entry for file, entry in facts["files"].items() if file not in files.values()}
            facts.update(files=others | listed, **({} if channels is None else {"program": {"channels": channels}}))

        manifest(restated)(run)

    return apply


def written(file: Path) -> dict[str, Any]:
    return asdict(state_files.hash_file(file))


def number(run: Path) -> None:
    (file := newest(run) / f"{PARAMS}.json").write_text("5")
    manifest(lambda facts: facts["files"].update({file.name: written(file)}))(run)


def state(change: Callable[[Any], Any]) -> Change:
    return lambda run: restate(run, PARAMS, change)


CHANGES: dict[str, Change] = {
    "digits": manifest(lambda facts: facts["files"].update({f"{PARAMS}.{'9' * 5_000}.json": {}})),
    "no parameters": divided("9" * 200),
    "two writers of matrices": divided("0", "1"),
    "writers of nothing": divided("0", channels={"params": 5}),
    "writers of another size": divided("0", channels={"params": {"w": "float32 [100000000000000, 1000000000]"}}),
    "writers of a text": divided("0", channels={"params": {"w": 'float32 "a"'}}),
    "no tensors": state(lambda state: state.clear()),
    "a list": state(put("tensors", [1])),
    "numbers": state(lambda state: state["tensors"].update(dict.fromkeys(state["tensors"], 5))),
    "a number": number,
    "more than one": manifest(lambda facts: facts["files"].update({f"params-x{n}\n.json": {} for n in range(3_000)})),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("words", ["eval r --episodes 1", "export r --to safetensors", "resume r --steps 90 --quiet"])
def test_parameters_of_a_checkpoint_that_are_none_are_told_of(
    change: Change, words: str, run: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """And those of the checkpoint before are taken."""
    copies(run, 2)
    change(run)
    capsys.readouterr()
    code = main(words.split())
    told = capsys.readouterr().err
    assert code == 0 or ("does not fit this program" in told and code == 1), told  # which lists the differences
    assert told.count("\n") <= (1 if code == 0 else 12) and len(told) < 1_500, told
    harmless = change in (CHANGES["digits"], CHANGES["more than one"], CHANGES["no parameters"])
    assert code or harmless or "trying the one before" in caplog.text, caplog.text


def copies(run: Path, count: int) -> None:
    source = newest(run)
    for n in range(count - 1):
        shutil.copytree(source, source.with_name(f"{n:012d}"))


def test_of_many_damaged_checkpoints_two_are_named(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    copies(run, 6)
    for path in sorted((run / checkpoint.FOLDER).iterdir())[1:]:
        (path / f"{PARAMS}.json").write_text("x")
    with caplog.at_level(logging.WARNING):
        assert newest_params(run / checkpoint.FOLDER, "params") is not None
        lines = [record.getMessage() for record in caplog.records]
        assert [line.endswith("trying the one before") for line in lines] == [True, True, False]
        assert lines[2] == "so are 3 checkpoints more before it"
        caplog.clear()
        assert checkpoint.newest(run / checkpoint.FOLDER).path.name == "0" * 12
        assert [record.getMessage() for record in caplog.records] == lines
        caplog.clear()
        for path in (run / checkpoint.FOLDER).iterdir():
            path.rename(path.with_name(path.name.removeprefix("damaged-").partition("-")[0]))
        (newest(run).with_name("0" * 12) / "manifest.json").unlink()
        with pytest.raises(shoal.ShoalError, match="all 6 are damaged"):
            checkpoint.newest(run / checkpoint.FOLDER)
        assert len(caplog.records) == 2


def test_so_many_checkpoints_are_tried_that_cannot_be_loaded(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    copies(run, MAX_UNLOADABLE + 3)
    tried: list[Checkpoint] = []

    def fail(launch: Launch) -> Any:
        assert launch.resume is not None
        tried.append(launch.resume)
        raise Unloadable(launch.resume, "no")

    launch = Launch(resume=checkpoint.newest(run / checkpoint.FOLDER), went_back=lambda source: None)
    with caplog.at_level(logging.WARNING), pytest.raises(Unloadable, match=f"{MAX_UNLOADABLE - 10 + 3:012d}"):
        run_from_newest(launch, fail)
    assert len(tried) == len({one.path for one in tried}) == MAX_UNLOADABLE and len(caplog.records) == 2


def test_differences_of_a_saved_program_are_listed_in_part(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = {f"c{n}\x1b{'x' * (80 if n else 5_000)}": {"w": "y" * 5_000} for n in range(1_000)}
    manifest(lambda facts: facts["program"]["channels"].update(many))(run)
    capsys.readouterr()
    assert main(["resume", str(run), "--steps", "90", "--quiet"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 22 and lines[-1] == "  and 980 more" and max(map(len, lines)) < 400


def test_large_settings_are_shown_in_part(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """But where they are asked for as a file."""
    facts = json.loads((run / "config.json").read_text())
    facts["config"]["env_kwargs"] = {f"k{n}": n for n in range(5_000)}
    (run / "config.json").write_text(json.dumps(facts))
    capsys.readouterr()
    assert main(["config", "impala", "--config", str(run)]) == 0
    told = capsys.readouterr().out
    assert "k1" in told and "--toml shows all" in told and len(told) < 40_000
    assert main(["config", "impala", "--config", str(run), "--toml"]) == 0
    (tmp_path / "c.toml").write_text(capsys.readouterr().out)
    assert read_file(tmp_path / "c.toml")["env_kwargs"] == facts["config"]["env_kwargs"]
