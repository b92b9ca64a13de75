"""Files of another version of Shoal: each says the version of its format, and one sentence says who reads it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import save_file

import shoal
from shoal.api import ShoalError
from shoal.cli.main import main
from shoal.records.formats import check_format

SMALL: dict[str, Any] = dict(
    env="CartPole-v1", preset="none", actors=1, envs=2, unroll=8, hidden=(8,), min_replay=64, replay=500, batch=8,
    steps=600,
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("of") / "run"
    shoal.train("dqn", runtime="serial", run_dir=path, evaluation=shoal.Evaluation(every=300, episodes=1), **SMALL)
    return path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def change(file: Path, **facts: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **facts}), encoding="utf-8")


def test_every_file_of_a_run_says_its_format(run: Path) -> None:
    names = ("config.json", "report.json", "params.json", "best/params.json")
    files = [run / name for name in names] + [*run.glob("checkpoints/*/manifest.json")]
    assert len(files) > len(names)
    for file in files:
        assert json.loads(file.read_text(encoding="utf-8"))["format"] == 2, file


@pytest.mark.parametrize("format, age", [(3, "a newer"), (99, "a newer"), (1, "an older"), (0, "an older")])
@pytest.mark.parametrize(
    "name, words",
    [
        ("config.json", "resume RUN --steps 900"), ("config.json", "eval RUN"), ("config.json", "plot RUN"),
        ("config.json", "compare RUN RUN2"), ("config.json", "export RUN --to safetensors"),
        ("config.json", "profile RUN"), ("config.json", "train dqn --init-from RUN"),
        ("params.json", "eval RUN"), ("params.json", "export RUN --to safetensors"),
        ("params.json", "train dqn --init-from RUN"), ("best/params.json", "eval RUN --best"),
        ("report.json", "plot RUN"), ("report.json", "resume RUN --steps 900"),
    ],
)  # fmt: skip
def test_a_file_of_another_format_is_refused_in_a_sentence(
    name: str, words: str, format: int, age: str, run: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, tmp_path / "second")
    change(run / name, format=format)
    code = main([{"RUN": str(run), "RUN2": str(tmp_path / "second")}.get(word, word) for word in words.split()])
    err = capsys.readouterr().err
    assert code in (1, 2) and err.count("\n") == 1
    assert f"{name} was written by {age} version of Shoal: it has format {format}" in err


def test_a_configuration_of_another_format_is_no_configuration(run: Path, capsys: Any) -> None:
    change(run / "config.json", format=3)
    assert main(["config", "dqn", "--config", str(run)]) == 2
    assert "was written by another version of Shoal: format 3, and this one reads 2\n" in capsys.readouterr().err


def test_a_run_without_a_setting_of_today_has_its_default(run: Path) -> None:
    facts = json.loads((run / "config.json").read_text(encoding="utf-8"))
    del facts["config"]["double"], facts["evaluation"]["max_steps"]
    change(run / "config.json", config=facts["config"], evaluation=facts["evaluation"])
    assert len(shoal.evaluate(run, episodes=1)) == 1
    assert shoal.resume(run, steps=700).report is not None


@pytest.mark.parametrize("words", ["eval RUN", "resume RUN --steps 900", "export RUN --to safetensors"])
def test_a_setting_that_is_gone_is_named(words: str, run: Path, capsys: Any) -> None:
    facts = json.loads((run / "config.json").read_text(encoding="utf-8"))
    change(run / "config.json", config={**facts["config"], "learning_rat": 1.0})
    assert main([str(run) if word == "RUN" else word for word in words.split()]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "unknown key 'learning_rat'" in err and "is of another version of Shoal" in err


def test_an_option_of_a_later_version_is_named(run: Path, capsys: Any) -> None:
    facts = json.loads((run / "config.json").read_text(encoding="utf-8"))
    change(run / "config.json", evaluation={**facts["evaluation"], "cameras": 2})
    assert main(["resume", str(run), "--steps", "900"]) == 2
    assert "'cameras' of its evaluation, which this version of Shoal does not know" in capsys.readouterr().err


def test_a_saved_policy_of_another_format_is_refused(run: Path, tmp_path: Path) -> None:
    shoal.Run.open(run).policy().save(tmp_path / "policy.safetensors")
    with safe_open(tmp_path / "policy.safetensors", "pt") as file:
        facts = json.loads(file.metadata()["shoal"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, tmp_path / "newer.safetensors", {"shoal": json.dumps({**facts, "format": 3})})
    with pytest.raises(ShoalError, match=r"newer.safetensors was written by a newer version of Shoal: it has format 3"):
        shoal.load(tmp_path / "newer.safetensors")


def test_a_population_of_another_format_is_refused(tmp_path: Path, capsys: Any) -> None:
    words = "train pbt --of dqn --env CartPole-v1 --preset none --mutate learning_rate --population 2 --steps 400 "
    words += "--slots 1 --interval 200 --envs 2 --unroll 8 --min-replay 64 --replay 500"
    assert main([*words.split(), "--run-dir", str(tmp_path / "p")]) == 0
    for name in ("state.json", "population.json"):
        assert json.loads((tmp_path / "p" / name).read_text(encoding="utf-8"))["format"] == 2
        change(tmp_path / "p" / name, format=3)
        assert main(["resume", str(tmp_path / "p"), "--steps", "800"]) == 1
        assert f"{name} was written by a newer version of Shoal" in capsys.readouterr().err
        change(tmp_path / "p" / name, format=2)


@pytest.mark.parametrize("format", [True, "1", None, 1.0])
def test_a_format_that_is_no_number_is_damage(format: Any, tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match="is damaged: its format is"):
        check_format(tmp_path / "x.json", {"format": format}, 1)
