"""Whatever a file of a run, a population or a saved policy holds, a command ends with an exit code and a sentence, and
touches nothing outside of what it was given: no file, no module, no connection, no process."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mutations import mutate

import shoal
from shoal.api import ShoalError, UsageError
from shoal.cli.main import main
from shoal.records import run_dir
from shoal.run import runtimes, training
from shoal.run.population.member import train_slice
from shoal.run.population.training import PopulationRun
from shoal.watch.catalogue import Catalogue
from shoal.watch.report import card
from shoal.watch.site import Site

TASTE = 30  # attacks a test: the same on every machine
LONG = 300.0  # seconds
ROOT = Path(__file__).parents[2]
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink", "os.chmod",
           "shutil.rmtree", "shutil.move")  # fmt: skip
REFUSED = ("socket.connect", "socket.bind", "socket.getaddrinfo", "subprocess.Popen", "os.exec", "os.posix_spawn",
           "os.system", "os.fork", "os.forkpty")  # fmt: skip
watching: list[Path] = []  # what may be changed while a command runs; nothing: nobody looks
seen: list[str] = []  # what should not have happened


def audit(event: str, args: tuple[Any, ...]) -> None:
    if not watching:
        return
    if event in REFUSED or (event == "import" and args[1] and str(args[1]).startswith(str(watching[0]))):
        seen.append(f"{event} {args}"[:300])
    elif event == "open" or event in CHANGES:
        if event == "open" and not (isinstance(args[2], int) and args[2] & WRITES):
            return
        name = args[0]
        if isinstance(name, int) or name is None:
            return
        inside = args[-1] if event in ("os.remove", "os.rmdir", "os.mkdir") else -1  # the descriptor of a folder
        folder = os.readlink(f"/proc/self/fd/{inside}") if inside >= 0 else os.getcwd()
        path = os.path.normpath(os.path.join(folder, os.fsdecode(name)))
        if held := re.match(r"(/proc/self/fd/\d+)(/.*)", path):  # of a folder that is held open
            path = os.readlink(held[1]) + held[2]
        if not path.startswith(tuple(map(str, watching))) and "__pycache__" not in path and path != os.devnull:
            seen.append(f"{event} {args}"[:300])


sys.addaudithook(audit)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that evaluated itself, a population, a saved policy and a file of settings."""
    with contextlib.suppress(ImportError):  # it makes its folders at the first import, which no file is to blame for
        import matplotlib.pyplot  # noqa: F401
    folder = tmp_path_factory.mktemp("originals")
    run = shoal.train(
        "impala", run_dir=folder / "run", steps=60, env="CartPole-v1", runtime="serial", preset="none", actors=1,
        envs=2, hidden=(4,), unroll=5, evaluation=shoal.Evaluation(every=30, episodes=1), seed=1,
    )  # fmt: skip
    run.policy().save(folder / "policy.safetensors")
    words = (
        "train pbt --of impala --env CartPole-v1 --preset none --actors 1 --envs 2 --hidden 4 --unroll 5 --steps 60 "
        "--interval 30 --population 2 --slots 1 --mutate learning_rate=0.001:0.01 --quiet"
    )
    assert main([*words.split(), "--run-dir", str(folder / "population")]) == 0
    (folder / "settings.toml").write_text(
        'env = "CartPole-v1"\nhidden = [4]\nlearning_rate = 0.01\n[env_kwargs]\na = 1\n'
    )
    return folder


def nothing(*args: Any, **kwargs: Any) -> Any:
    """In place of what starts processes of Shoal's own."""
    raise UsageError("no other runtime in this test")


def cases(folder: Path) -> dict[str, list[Callable[[], object]]]:
    """What reads each of the files."""
    run, population, policy = (str(folder / name) for name in ("run", "population", "policy.safetensors"))
    settings, new = str(folder / "settings.toml"), ("--env", "CartPole-v1", "--runtime", "serial", "--steps", "20")

    def command(*words: str) -> Callable[[], object]:
        return lambda: main(words)

    def slices() -> None:
        reopened = PopulationRun.reopen(Path(population), steps=90)
        for member in reopened.control.members:
            train_slice(reopened._slice(member))

    return {
        "run": [
            command("eval", run, "--episodes", "1"), command("eval", run, "--episodes", "1", "--best"),
            command("resume", run, "--steps", "90", "--quiet"), command("compare", run), command("plot", run),
            command("resume", run, "--steps", "90", "--learning-rate", "0.1"),
            command("config", "impala", "--config", run),
            command("export", run, "--to", "safetensors"), command("draw", "impala", "--config", run),
            command("train", "impala", "--init-from", run, "--hidden", "4", *new, "--run-dir", str(folder / "new")),
            command("profile", run, "--seconds", "0.01", "--run-dir", str(folder / "profiled")),
        ],
        "population": [
            slices, command("eval", population, "--episodes", "1"), command("plot", population),
            command("compare", population), command("resume", population, "--quiet", "--steps", "90"),
            command("export", population, "--to", "safetensors"),
        ],
        "policy.safetensors": [
            lambda: shoal.load(policy),
            command("train", "impala", "--init-from", policy, "--hidden", "4", *new, "--run-dir", str(folder / "new")),
        ],
        "settings.toml": [
            command("config", "impala", "--config", settings), command("draw", "impala", "--config", settings),
            command("config", "impala", "--toml", "--config", settings),
        ],
    }  # fmt: skip


def looks(folder: Path) -> list[Callable[[], object]]:
    """What shows the runs and populations in a folder, whatever is the matter with them."""
    run, population, out = (str(folder / name) for name in ("run", "population", "report.html"))
    site = Site(Catalogue([folder]))
    return [
        lambda: main(["runs", str(folder)]), lambda: main(["runs", run]),
        lambda: main(["report", run, "--out", out]), lambda: main(["report", population, "--out", out]),
        lambda: card(folder / "run").encode() and 0, lambda: json.dumps(site.run("run"), allow_nan=False) and 0,
        lambda: json.dumps([site.run("population"), site.listing()], allow_nan=False) and 0,
        lambda: json.dumps([site.times("run", "seconds"), site.metrics(["run"])], allow_nan=False) and 0,
    ]  # fmt: skip


def agree(folder: Path) -> None:
    """Let the manifests of checkpoints say what the files are now, as whoever changes them would."""
    for manifest in folder.rglob("checkpoints/*/manifest.json"):
        with contextlib.suppress(ValueError, TypeError, KeyError, OSError, AttributeError):
            facts = json.loads(manifest.read_text())
            for name in facts["files"]:
                data = (manifest.parent / name).read_bytes()
                facts["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            manifest.write_text(json.dumps(facts))


def attack(seed: int, originals: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Change a file, and let a command read it."""
    draw = random.Random(seed)
    shutil.rmtree(place, ignore_errors=True)
    folder = place / "given"
    shutil.copytree(originals, folder)
    outside = place / "outside"
    outside.write_text("mine\n")
    which = draw.choices(["run", "population", "policy.safetensors", "settings.toml"], [6, 4, 1, 1])[0]
    found = folder / which
    files = sorted(p for p in [found, *found.rglob("*")] if p.is_file() and p.suffix not in (".log", ".mmd", ".txt"))
    file = draw.choice(files)
    mutate(file, outside, draw)
    if "checkpoints" in file.parts and file.name != "manifest.json" and file.is_file() and not file.is_symlink():
        agree(folder)
    if random.Random(f"{seed} published").random() < 0.3:  # beside ``draw``, so that seeds mean what they meant
        for published in (found / "params.json", *found.glob("members/*/params.json")):
            if published.is_file() or published.is_symlink():
                published.unlink()  # parameters are read from a checkpoint then
    act, look = draw.choice(cases(folder)[which]), draw.choice(looks(folder))
    state, before = Path(os.environ["XDG_STATE_HOME"]), os.getcwd()
    capsys.readouterr()
    seen.clear()
    os.chdir(place)
    pictures = [place / name for name in ("curves.png", "population.png")]
    watching[:] = [folder, state, *pictures, *(place / f".{path.name}.tmp" for path in pictures)]
    codes: list[object] = []
    try:
        for do in (look, act):
            try:
                codes.append(do())
            except ShoalError as error:
                codes.append(1 if len(str(error)) < 4_000 else error)
    finally:
        watching.clear()
        os.chdir(before)
    out, err = capsys.readouterr()
    assert seen == [], f"{file}: {seen}"
    assert all(not isinstance(code, (int, Exception)) or code in (0, 1, 2) for code in codes), codes
    assert "Traceback" not in err and len(err) < 4_000, err
    assert not set(out + err) - {"\n", "\t"} & set(map(chr, range(32))), (out, err)
    assert outside.read_text() == "mine\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    made = training.make_runtime
    monkeypatch.setattr(run_dir, "git_commit", lambda folders: None)
    monkeypatch.setattr(
        training, "make_runtime", lambda name, *rest: made(name, *rest) if name == "serial" else nothing()
    )
    monkeypatch.setattr(PopulationRun, "_train", lambda *args: None)
    monkeypatch.setattr(runtimes, "apart", lambda call: nothing())
    yield tmp_path / "place"
    watching.clear()


def attack_with(seeds: Iterable[int], originals: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in seeds:
        try:
            attack(seed, originals, place, capsys)
        except BaseException as error:
            error.add_note(f"with the seed {seed}") if hasattr(error, "add_note") else None
            raise


FOUND = [61, 115, 1270, 1309, 736238594]  # seeds that found something once


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_once(seed: int, originals: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attack(seed, originals, place, capsys)


@pytest.mark.parametrize("first", [0, TASTE, 2 * TASTE])
def test_files_of_a_stranger(first: int, originals: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attack_with(range(first, first + TASTE), originals, place, capsys)


@pytest.mark.long
@pytest.mark.timeout(LONG + 100)
def test_files_of_a_stranger_for_five_minutes(originals: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = int(os.environ.get("SHOAL_FUZZ_SEED", time.time_ns() % 10**9))
    print(f"seeds from {first} on")
    end = time.monotonic() + LONG
    until = itertools.takewhile(lambda seed: time.monotonic() < end, itertools.count(first))
    attack_with(until, originals, place, capsys)
