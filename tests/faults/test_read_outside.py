"""Files and folders of a run that become links just after they were looked at: nothing behind them is read, written or
removed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import shoal
from shoal import untrusted
from shoal.api import UsageError
from shoal.cli.main import main
from shoal.held import follows_links, stay_below
from shoal.local import processes
from shoal.local.apart import apart
from shoal.metering.aggregator import Snapshot
from shoal.records import checkpoint
from shoal.records.run_dir import RunDirectory
from shoal.run.population.slots import Slots
from shoal.untrusted import by_name, open_bytes, require_plain, to_write

pytestmark = pytest.mark.timeout(110)
GARBAGE = b"OUTSIDE\n" * 20  # whoever reads it finds it damaged, and says so
FLAGS = "--env CartPole-v1 --preset none --actors 1 --envs 2 --hidden 4 --unroll 5"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that evaluated itself, and a population."""
    folder = tmp_path_factory.mktemp("made")
    shoal.train(
        "impala", run_dir=folder / "r", steps=60, env="CartPole-v1", runtime="serial", preset="none", actors=1, envs=2,
        hidden=(4,), unroll=5, evaluation=shoal.Evaluation(every=30, episodes=1), seed=1,
    )  # fmt: skip
    words = f"train pbt --of impala {FLAGS} --steps 60 --interval 30 --population 2 --slots 1 --quiet"
    assert main([*words.split(), "--mutate", "learning_rate=0.001:0.01", "--run-dir", str(folder / "p")]) == 0
    return folder


@pytest.fixture
def theirs(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("shoal.held._plain", {})
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path / "theirs"


def garbled(place: Path, outside: Path) -> None:
    """What would be found behind a link in ``place``: all that is there now, with other contents."""
    if place.is_dir():
        shutil.copytree(place, outside)
        for file in outside.rglob("*"):
            if file.is_file():
                file.write_bytes(GARBAGE)
    else:
        outside.write_bytes(GARBAGE)


def swap(place: Path, outside: Path) -> None:
    """Put a link in its place."""
    if not place.is_symlink():
        shutil.rmtree(place) if place.is_dir() else place.unlink()
        place.symlink_to(outside)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in [folder, *folder.rglob("*")]}


def after_the_look(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Let ``act`` happen as soon as a directory has been looked at."""
    entries = untrusted._entries

    def look(path: Path) -> Iterator[os.DirEntry[str]]:
        yield from entries(path)
        act()

    monkeypatch.setattr(untrusted, "_entries", look)


COMMANDS = {
    "eval": ["eval", "r", "--episodes", "1"], "eval --best": ["eval", "r", "--best", "--episodes", "1"],
    "compare": ["compare", "r"], "export": ["export", "r", "--to", "safetensors", "--out", "exported"],
    "runs": ["runs", "r"],
    "init-from": ["train", "impala", "--init-from", "r", *FLAGS.split(), "--runtime", "serial", "--steps", "20",
                  "--run-dir", "new", "--quiet"],
    "profile": ["profile", "r", "--seconds", "0.01", "--run-dir", "new", "--quiet"],
    "a population: eval": ["eval", "p", "--episodes", "1"], "a population: plot": ["plot", "p"],
    "a population: compare": ["compare", "p"],
}  # fmt: skip


def names(folder: Path) -> list[Path]:
    """Every folder and file that commands read, or a folder above it; of the members of a population their folder."""
    patterns = ("*.json", "*.csv", "*.safetensors", "best", "best/*", "checkpoints", "members", "members/*")
    return sorted({p.relative_to(folder) for pattern in patterns for p in folder.glob(pattern)})


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_read_through_a_link_that_was_none_when_it_was_looked_at(
    command: str, made: Path, theirs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "plot" in command:
        pytest.importorskip("matplotlib")
    which = "p" if "population" in command else "r"
    words = [str(theirs / word) if word in ("r", "p") else word for word in COMMANDS[command]]
    new = [theirs.parent / "cwd" / name for name in ("exported", "new")]

    def run(name: Path | None) -> tuple[int, str, str]:
        shutil.rmtree(theirs, ignore_errors=True)
        shutil.copytree(made / which, theirs / which)
        outside = theirs / "outside"
        with monkeypatch.context() as patched:
            if name is not None:
                garbled(theirs / which / name, outside)
                after_the_look(patched, lambda: swap(theirs / which / name, outside))
            capsys.readouterr()
            code = main(words)
        told = capsys.readouterr()
        for path in new:
            shutil.rmtree(path, ignore_errors=True)
        return code, told.out, told.err

    plain = run(None)
    assert plain[0] == 0, plain
    refused = 0
    for name in names(made / which):
        code, out, err = run(name)
        if "symbolic link" in err:
            refused += 1
            assert code == (0 if command == "runs" else 2) and err.count("\n") == 1, (name, code, err)
            assert "it is left out" in err or code, err
        elif command != "profile":  # whose figures are of the clock
            assert (code, out) == plain[:2], (name, code, out, err)
        else:
            assert code == 0, (name, err)
    assert refused, "something of it is read"


def test_a_run_whose_config_is_swapped_configures_nothing(
    made: Path, theirs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(made / "r", theirs / "r"))
    (theirs / "outside").write_bytes(GARBAGE)
    swap(run / "config.json", theirs / "outside")
    monkeypatch.setattr(Path, "is_symlink", lambda self: False)
    capsys.readouterr()
    assert main(["config", "impala", "--config", str(run)]) == 2
    assert "symbolic link" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["export", "export/safetensors-last"])
def test_no_export_is_written_through_a_link(
    what: str, made: Path, theirs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anything removed behind it."""
    run, outside = Path(shutil.copytree(made / "r", theirs / "r")), theirs / "outside"
    (run / what).mkdir(parents=True)
    (outside / ".safetensors-last.tmp").mkdir(parents=True)
    (outside / ".safetensors-last.tmp" / "mine").write_text("mine\n")
    before = tree(outside)
    after_the_look(monkeypatch, lambda: swap(run / what, outside))
    capsys.readouterr()
    code = main(["export", str(run), "--to", "safetensors"])
    told = capsys.readouterr()
    assert tree(outside) == before
    assert code in (1, 2) and told.err.count("\n") == 1, told


def test_what_was_published_is_forgotten_where_it_was_published(made: Path, theirs: Path) -> None:
    run, outside = Path(shutil.copytree(made / "r", theirs / "r")), theirs / "outside"
    outside.mkdir()
    (outside / "params.json").write_text("mine\n")
    (run / "newest").mkdir()
    directory = RunDirectory.reopen(run, trust=False)
    directory.go_on(checkpoint.newest(run / "checkpoints"))
    swap(run / "newest", outside)
    directory.update(Snapshot(9, 1.0, 90, 9, 1.0, 1.0, 1.0, 1.0, 1))
    directory.close()
    assert (outside / "params.json").read_text() == "mine\n"


def test_a_directory_of_ones_own_follows_links_again(theirs: Path) -> None:
    theirs.mkdir()
    (theirs / "outside").write_text("x")
    run = theirs / "r"
    run.mkdir()
    require_plain(run, trust=False)
    (run / "file").symlink_to(theirs / "outside")
    with pytest.raises(UsageError, match="symbolic link"):
        open_bytes(run / "file")
    with pytest.raises(UsageError, match="symbolic link"), by_name(run / "file"):
        pass
    require_plain(run, trust=True)
    open_bytes(run / "file").close()
    with to_write(run / "a" / "b") as place:
        place.write_text("x")
    assert (run / "a/b").read_text() == "x"


@pytest.mark.parametrize("inside", ["manifest.json", "params-params.json", "params-params.safetensors", ""])
def test_no_checkpoint_is_read_through_a_link(
    inside: str, made: Path, theirs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that has published nothing else."""
    run, outside = Path(shutil.copytree(made / "r", theirs / "r")), theirs / "outside"
    (run / "params.json").unlink()
    for one in sorted((run / "checkpoints").iterdir())[:-1]:
        shutil.rmtree(one)
    (only,) = (run / "checkpoints").iterdir()
    place = only / inside if inside else run / "checkpoints"
    garbled(place, outside)
    capsys.readouterr()
    assert main(["eval", str(run), "--episodes", "1"]) == 0
    after_the_look(monkeypatch, lambda: swap(place, outside))
    capsys.readouterr()
    assert main(["eval", str(run), "--episodes", "1"]) in (1, 2)
    told = capsys.readouterr().err
    assert "OUTSIDE" not in told and "damaged: its manifest" not in told, told


def test_a_process_follows_links_where_the_one_does_that_started_it(theirs: Path) -> None:
    run, outside = theirs / "r", theirs / "outside"
    run.mkdir(parents=True)
    outside.write_text("x")
    (run / "file").symlink_to(outside)
    read = partial(untrusted.read_text, run / "file")
    assert apart(read) == "x" and follows_links(run), "nobody looked"
    require_plain(theirs / "r" / ".." / "r", trust=True)
    assert apart(read) == "x" and follows_links(run)
    stay_below(run / "members")
    stay_below(run)
    with pytest.raises(UsageError, match="symbolic link"):
        apart(read)
    assert not follows_links(run) and not follows_links(run / "members" / "000")
    (run / "members").symlink_to(theirs)
    stay_below(run / "members")
    with pytest.raises(UsageError, match="symbolic link"):
        open_bytes(run / "members" / "outside")
    assert follows_links(theirs)


def test_a_role_loads_no_state_through_a_link(
    made: Path, theirs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file that became one when the checkpoint had been verified. What the link leads to could be loaded."""
    run = theirs / "r"
    shoal.train(
        "impala", run_dir=run, steps=60, env="CartPole-v1", preset="none", actors=1, envs=2, hidden=(4,), unroll=5,
    )  # fmt: skip
    (only,) = (run / "checkpoints").iterdir()
    outside, start = theirs / "outside", processes.start
    shutil.copytree(only, outside)

    def swapped(*args: Any) -> Any:
        for file in only.glob("*.json"):
            swap(file, outside / file.name)
        return start(*args)

    monkeypatch.setattr(processes, "start", swapped)
    capsys.readouterr()
    assert main(["resume", str(run), "--steps", "90", "--quiet"]) in (1, 2)
    told = capsys.readouterr().err
    assert "symbolic link" in told and told.count("\n") <= 3, told


def test_a_member_loads_no_state_through_a_link(
    made: Path, theirs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    population = Path(shutil.copytree(made / "p", theirs / "p"))
    outside, start = theirs / "outside", Slots._start

    def swapped(self: Slots, slot: int) -> None:
        for member in (population / "members").iterdir():
            if not (member / "checkpoints").is_symlink():
                shutil.copytree(member / "checkpoints", outside / member.name)
                swap(member / "checkpoints", outside / member.name)
        start(self, slot)

    monkeypatch.setattr(Slots, "_start", swapped)
    capsys.readouterr()
    assert main(["resume", str(population), "--steps", "120"]) in (1, 2)
    told = capsys.readouterr()
    assert "symbolic link" in told.out + told.err and told.err.count("\n") <= 3, told
    assert all((member / "checkpoints").is_symlink() for member in (population / "members").iterdir()), "no copy"


def test_an_agent_on_another_node_follows_links_where_its_driver_does(
    theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    from shoal.ray_runtime import agent, supervisor

    run = theirs / "r"
    run.mkdir(parents=True)
    stay_below(run)
    driver: Any = SimpleNamespace(_program=SimpleNamespace(roles=[]), _plan=None, _blobs={}, _hang_timeout=0.0,
                                  _launch=Mock(resume=None))  # fmt: skip
    monkeypatch.setattr(supervisor.cloudpickle, "dumps", lambda orders: orders)
    orders: Any = supervisor.RaySupervisor._orders(driver)
    monkeypatch.setattr("shoal.held._plain", {})
    assert follows_links(run)
    monkeypatch.setattr(agent.cloudpickle, "loads", lambda pickled: pickled)
    with pytest.raises(AttributeError):  # of the plan, which there is none of
        agent.Agent(orders, [])
    assert not follows_links(run)
