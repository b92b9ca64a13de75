"""A run directory from somebody else: what it names is not started, not opened, not connected to and not written to."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.api import ShoalError, UsageError
from shoal.cli.main import main
from shoal.local.apart import apart
from shoal.paths import require_folder
from shoal.records import loggers, run_dir
from shoal.records.atomic_write import write_atomic
from shoal.run import trust
from shoal.run.population.training import PopulationRun, best_member

pytestmark = pytest.mark.timeout(110)
SMALL: dict[str, Any] = dict(
    env="CartPole-v1", runtime="serial", preset="none", actors=1, envs=2, hidden=(4,), unroll=5
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shoal.train("impala", run_dir=tmp_path_factory.mktemp("runs") / "r", steps=60, **SMALL).path


@pytest.fixture(scope="module")
def bred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A population of two, half trained."""
    path = tmp_path_factory.mktemp("runs") / "p"
    words = (
        "train pbt --of impala --env CartPole-v1 --preset none --actors 1 --envs 2 --hidden 4 --unroll 5 --steps 60 "
        "--interval 30 --population 2 --slots 1 --mutate learning_rate=0.001:0.01 --quiet"
    )
    assert main([*words.split(), "--run-dir", str(path)]) == 0
    return path


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a run, which this user has never seen."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Path(shutil.copytree(made, tmp_path / "r"))


@pytest.fixture
def population(bred: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Path(shutil.copytree(bred, tmp_path / "p"))


def edit(file: Path, change: Callable[[Any], Any]) -> None:
    """Change what a JSON file holds, in place."""
    facts = json.loads(file.read_text())
    change(facts)
    file.write_text(json.dumps(facts))


def refused(*args: str) -> Callable[[pytest.CaptureFixture[str]], str]:
    def check(capsys: pytest.CaptureFixture[str]) -> str:
        capsys.readouterr()
        code = main(args)
        told = capsys.readouterr().err
        assert code in (1, 2) and told.count("\n") == 1, (code, told)
        return told

    return check


# ------------------------------------------------------------------------------------- populations
@pytest.mark.parametrize("where", ["member", "before", "after", "sample", "shared"])
def test_a_population_cannot_name_code_in_the_values_of_a_member(
    population: Path, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = population.parent / "evil.py"
    evil.write_text(f"from pathlib import Path\nPath({str(population.parent / 'ran')!r}).touch()\n")
    named = {"env": f"{evil}:Mine"}
    line = {"child": 0, "parent": 1, "step": 30, "parent_step": 30, "score": 1.0, "parent_score": 2.0}

    def change(state: Any) -> None:
        values = state["members"][0]["values"]
        if where == "member":
            values |= named
        elif where in ("before", "after"):
            state["lineage"] = [{**line, "before": values, "after": values, where: {**values, **named}}]
        elif where == "sample":
            state["members"][0]["samples"] = ["many"]

    edit(population / "state.json", change)
    if where == "shared":
        edit(population / "population.json", lambda facts: facts["values"].update(named))
    refused("resume", str(population), "--steps", "120", "--quiet")(capsys)
    assert not (population.parent / "ran").exists()


@pytest.mark.parametrize(
    "changed",
    [
        {"learning_rate": "fast"}, {"learning_rate": 1e300}, {"learning_rate": -1.0}, {"learning_rate": [0.001]},
        {"learning_rate": True}, {"hidden": [4096]}, {"learning_rate": None},
    ],
)  # fmt: skip
def test_a_member_has_only_the_values_that_its_space_names(
    population: Path, changed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    edit(population / "state.json", lambda state: state["members"][1]["values"].update(changed))
    assert "state.json" in refused("resume", str(population), "--steps", "120", "--quiet")(capsys)


@pytest.mark.parametrize("field", ["index", "step", "trained", "turn", "score", "lost"])
@pytest.mark.parametrize("value", [-7, 10**30, "5", None, [1], 0.5, float("nan")])
def test_a_member_has_numbers_of_its_kind(
    population: Path, field: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    if field == "score" and value in (None, -7, 0.5, 10**30):
        return
    edit(population / "state.json", lambda state: state["members"][1].update({field: value}))
    assert "state.json" in refused("resume", str(population), "--steps", "120", "--quiet")(capsys)
    if field in ("index", "score"):
        with pytest.raises(ShoalError, match=r"state\.json"):
            best_member(population)


def test_a_population_has_so_many_members(population: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More are not looked at one by one."""
    edit(population / "state.json", lambda state: state.update(members=[5] * 10_001))
    for words in (["eval", str(population), "--episodes", "1"], ["resume", str(population), "--steps", "120"]):
        assert main(words) == 1
        assert "10,001 members, at most 10,000 are read" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../victim.csv", "{}/victim.csv", "members/000/config.json", "population.json"])
@pytest.mark.parametrize("size", [0, 3])
def test_a_population_names_no_file_to_be_cut(population: Path, name: str, size: int) -> None:
    victim = population.parent / "victim.csv"
    victim.write_text("a,b\n1,2\n")
    before = (population / "population.json").read_bytes(), (population / "members/000/config.json").read_bytes()
    edit(population / "state.json", lambda state: state.update(sizes={name.format(population.parent): size}))
    with pytest.raises(ShoalError, match=r"state\.json"):
        PopulationRun.reopen(population, steps=61)
    assert victim.read_text() == "a,b\n1,2\n"
    assert before == (
        (population / "population.json").read_bytes(),
        (population / "members/000/config.json").read_bytes(),
    )


@pytest.mark.parametrize("size", [-1, 1.5, "0", True, None, 10**30])
def test_a_population_cuts_its_files_to_sizes_that_they_have(population: Path, size: Any) -> None:
    edit(population / "state.json", lambda state: state["sizes"].update({"scores.csv": size}))
    with pytest.raises(ShoalError, match=r"state\.json"):
        PopulationRun.reopen(population, steps=61)


@pytest.mark.parametrize(
    "changed",
    [
        {"size": 10**9}, {"size": -1}, {"size": "2"}, {"slots": 10**9}, {"slots": 0}, {"steps": -5}, {"seed": -1},
        {"runtime": "ray"}, {"runtime": "torchrun"}, {"evaluate": -1}, {"rules": {"interval": "1"}},
        {"rules": {"factors": "12"}}, {"space": {"env": {"values": ["os:system"]}}}, {"space": {"seed": {"low": 0}}},
        {"space": {"learning_rate": {"low": 0.001, "high": 10**400}}}, {"origins": 5}, {"preset": 3}, {"system": None},
        {"values": []}, {"more": 1},
    ],
)  # fmt: skip
def test_a_population_is_described_by_values_of_their_kinds(
    population: Path, changed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    edit(population / "population.json", lambda facts: facts.update(changed))
    refused("resume", str(population), "--steps", "120", "--quiet")(capsys)


@pytest.mark.parametrize(
    "changed, named",
    [
        ({"runtime": "ray", "address": "127.0.0.1:6379"}, "127.0.0.1:6379"), ({"log": ["wandb"]}, "wandb"),
        ({"log": ["tensorboard"], "log_args": {"tensorboard": {"log_dir": "/tmp/x"}}}, "/tmp/x"),
        ({"system": "evil:System"}, "evil:System"), ({"runtime": "evil:Runtime"}, "evil:Runtime"),
        ({"log": ["evil:Log"]}, "evil:Log"),
    ],
)  # fmt: skip
def test_the_config_of_a_member_is_held_to_what_that_of_a_run_is(
    population: Path, changed: dict[str, Any], named: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Where it is opened as a run; a population itself takes nothing of it."""
    monkeypatch.setattr(socket, "create_connection", lambda *args, **kwargs: pytest.fail(f"connected to {args}"))
    for member in (population / "members").iterdir():
        edit(member / "config.json", lambda facts: facts.update(changed))
    told = refused("resume", str(population / "members/000"), "--steps", "120", "--quiet")(capsys)
    assert named in told
    if "system" in changed:
        assert named in refused("eval", str(population), "--episodes", "1")(capsys)
        assert named in refused("export", str(population), "--to", "safetensors")(capsys)


# ------------------------------------------------------------------------------------- connections
def test_the_address_of_a_stranger_is_not_called(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is used where its user gives it, or has gone on with this very run there before."""
    monkeypatch.setattr(socket, "create_connection", lambda *args, **kwargs: pytest.fail(f"connected to {args}"))
    edit(run / "config.json", lambda facts: facts.update(runtime="ray", address="127.0.0.1:6379"))
    told = refused("resume", str(run), "--steps", "120", "--quiet")(capsys)
    assert "'127.0.0.1:6379'" in told and "--trust" in told
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:6379"):
        shoal.resume(run, steps=120)


@pytest.mark.parametrize("log", [["wandb"], ["tensorboard", "mlflow"]])
def test_a_strangers_run_tells_no_service(run: Path, log: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    edit(run / "config.json", lambda facts: facts.update(log=log))
    told = refused("resume", str(run), "--steps", "120", "--quiet")(capsys)
    assert f"'{log[-1]}'" in told and "--trust" in told
    assert shoal.resume(run, steps=120, log=()).report is not None, "its user says that there is none"


@pytest.mark.parametrize("args", [{"log_dir": "{}"}, {"comment": "x", "filename_suffix": "{}"}])
@pytest.mark.parametrize("words", [[], ["--log", "tensorboard"]])
def test_the_arguments_of_a_back_end_that_a_stranger_gave_are_not_used(
    run: Path, args: dict[str, str], words: list[str], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A directory outside of the run, the address of a service, also of a back end that its user names now."""
    monkeypatch.setattr(loggers, "check", lambda names, path: None)
    given: list[object] = []
    monkeypatch.setattr(loggers.TensorBoard, "__init__", lambda self, path, config, begun, args: given.append(args))
    args = {name: value.format(run.parent / "outside") for name, value in args.items()}
    edit(run / "config.json", lambda facts: facts.update(log=["tensorboard"], log_args={"tensorboard": args}))
    told = refused("resume", str(run), "--steps", "120", "--quiet", *words)(capsys)
    assert next(iter(args)) in told and "--trust" in told and not given
    mine = ["--log-args", "tensorboard.max_queue=3"]
    assert main(["resume", str(run), "--steps", "120", "--quiet", *words, *mine]) == 0
    assert main(["resume", str(run), "--steps", "180", "--quiet"]) == 0, "those that its user has given are known"
    assert given == [{"max_queue": 3}] * 2


def test_where_a_run_has_been_before_is_known(run: Path) -> None:
    with pytest.raises(UsageError, match="'auto'"):
        trust.check_connections(run, ["auto"], trust=False)
    trust.check_connections(run, ["auto"], trust=True)
    trust.note_connections(run, ["auto"])
    trust.check_connections(run, ["auto"], trust=False)
    with pytest.raises(UsageError, match="'auto'"):
        trust.check_connections(run.with_name("other"), ["auto"], trust=False)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"xml_file": "/tmp/evil.xml"}, {"xml_file": "evil.xml"}, {"a": {"b": ["os:system"]}}, {"a": ["~/x"]},
        {"entry": "os.path.join"}, {"a": {"evil.xml": 1}}, {"url": "//host/share"}, {"a": "..\\x"},
    ],
)  # fmt: skip
def test_arguments_of_an_environment_that_may_be_files_or_modules_are_looked_at(
    kwargs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    config = {"env": "Ant-v5", "env_kwargs": kwargs}
    with pytest.raises(UsageError, match="trust"):
        trust.check(Path("theirs"), "impala", config, trust=False)
    trust.check(Path("theirs"), "impala", config, trust=True)
    trust.note("impala", config)
    trust.check(Path("theirs"), "impala", config, trust=False)


@pytest.mark.parametrize("kwargs", [{}, {"size": 8, "map": "corridor", "mode": "CartPole-v1", "of": [1.5, None, True]}])
def test_plain_arguments_of_an_environment_are_nobodys(kwargs: dict[str, Any]) -> None:
    trust.check(Path("theirs"), "impala", {"env": "Ant-v5", "env_kwargs": kwargs}, trust=False)


@pytest.mark.parametrize("name", ["/net/host/set", "../set", "set", "~/set-v0", "a/../../set-v0"])
def test_demonstrations_that_are_a_path_are_looked_at(name: str) -> None:
    with pytest.raises(UsageError, match="trust"):
        trust.check(Path("theirs"), "r2d3", {"env": "CartPole-v1", "demonstrations": name}, trust=False)


# -------------------------------------------------------------------------------------------- code
GIT_EVIL = '#!/bin/sh\ntouch "{}"\n'


@pytest.fixture
def hooked(tmp_path: Path) -> Path:
    """A repository that runs something whenever git is asked about it; what it leaves behind then."""
    ran, script = tmp_path / "ran", tmp_path / "monitor.sh"
    script.write_text(GIT_EVIL.format(ran))
    script.chmod(0o755)
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "file").write_text("1")
    ask = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(repository)]
    monitor = ["config", "core.fsmonitor", shlex.quote(str(script))]
    for words in (["init", "-q"], ["add", "file"], ["commit", "-qm", "1"], monitor):
        subprocess.run([*ask, *words], check=True)
    subprocess.run([*ask, "status"], check=True, capture_output=True)
    assert ran.exists(), "the monitor works"
    ran.unlink()
    return repository


@pytest.mark.parametrize("named", ["monitor", "included file", "environment"])
def test_git_is_not_asked_of_the_working_directory(
    made: Path, hooked: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """Wherever the repository or the environment names a program: monitors, filters, work trees, included files."""
    run, script = shutil.copytree(made, hooked, dirs_exist_ok=True), shlex.quote(f"{hooked.parent}/monitor.sh")
    (run / ".gitattributes").write_text("* filter=x diff=x\n")
    keys = "".join(f"\n{key} = {script}" for key in ("clean", "smudge", "process"))
    more = f'[core]\nfsmonitor = {script}\nworktree = {run}\n[filter "x"]{keys}\n[diff]\nexternal = {script}\n'
    if named == "monitor":
        (run / ".git/config").write_text(more)
    else:
        (included := run.parent / "included").write_text(more)
        (run / ".git/config").write_text(f'[includeIf "gitdir:**"]\npath = {included}\n[include]\npath = {included}\n')
    if named == "environment":
        for name, value in {"DIR": run / ".git", "WORK_TREE": run, "CONFIG_GLOBAL": included}.items():
            monkeypatch.setenv(f"GIT_{name}", str(value))
    monkeypatch.chdir(run)
    assert main(["resume", ".", "--steps", "120", "--quiet"]) == 0
    assert main(["profile", ".", "--seconds", "0.01", "--quiet", "--run-dir", str(run.parent / "profiled")]) == 0
    assert main(["report", ".", "--out", str(run.parent / "report.html")]) == 0
    assert not (run.parent / "ran").exists()


def test_git_is_asked_of_the_users_own_code_without_its_monitors(hooked: Path) -> None:
    (hooked / "mine.py").write_text("class Mine: ...")
    facts = run_dir.provenance([f"{hooked}/mine.py:Mine"])
    head = subprocess.run(["git", "-C", str(hooked), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert facts["git"] == head.stdout.strip()
    (hooked / "file").write_text("2")
    assert run_dir.provenance([f"{hooked}/mine.py:Mine"])["git"] == head.stdout.strip() + "+changes"
    assert not (hooked.parent / "ran").exists()


COMMAND = "from shoal.__main__ import main; raise SystemExit(main())"


@pytest.mark.parametrize(
    "start, words",
    [
        (["-m", "shoal"], ["plot", "."]), (["-c", COMMAND], ["resume", ".", "--steps", "120", "--quiet"]),
        (["-m", "shoal"], ["eval", ".", "--episodes", "1"]),
    ],
)  # fmt: skip
def test_no_module_beside_a_run_is_imported(run: Path, start: list[str], words: list[str]) -> None:
    """Packages that Shoal uses where they are installed."""
    for name in ("tensorboard", "matplotlib", "wandb", "minari", "onnx", "triton", "envpool", "minigrid", "random"):
        (run / f"{name}.py").write_text(f"from pathlib import Path\nPath({str(run.parent)!r}, 'ran-{name}').touch()\n")
    edit(run / "config.json", lambda facts: facts.update(log=["tensorboard"]))
    subprocess.run([sys.executable, *start, *words], cwd=run, capture_output=True, check=False)
    assert [path.name for path in run.parent.glob("ran-*")] == []


def test_no_compiled_code_beside_a_run_is_loaded(run: Path) -> None:
    cache = run / "cache"
    (run / ".numba_config.yaml").write_text(f"cache_dir: {cache}\ncache_locator_classes: evil.Locator\n")
    asked = "import shoal.replay.sampling_kernels, numba; print(repr(numba.config.CACHE_DIR))"
    told = subprocess.run([sys.executable, "-P", "-c", asked], cwd=run, capture_output=True, text=True, check=True)
    assert told.stdout == "''\n" and not cache.exists()


@pytest.mark.parametrize("start", [["-m", "shoal"], ["-c", COMMAND]])
def test_no_settings_of_matplotlib_beside_a_run_are_read(run: Path, start: list[str]) -> None:
    """Some versions evaluate an expression in them, which can call anything."""
    pytest.importorskip("matplotlib")
    (run / "matplotlibrc").write_text("no.such.setting: evil\n")
    words = [sys.executable, *start, "plot", "."]
    told = subprocess.run(words, cwd=run, capture_output=True, text=True, check=True)
    assert "evil" not in told.stderr + told.stdout


def test_no_process_that_a_run_starts_reads_settings_of_matplotlib_beside_it(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a package of environments may import it."""
    pytest.importorskip("matplotlib")
    (run / "matplotlibrc").write_text("lines.linewidth: 1234\n")
    monkeypatch.chdir(run)
    assert apart(linewidth) != 1234 and os.getcwd() == str(run)


def linewidth() -> float:
    import matplotlib

    return float(matplotlib.rcParams["lines.linewidth"])


@pytest.mark.parametrize("folder", ["wandb", ".wandb", "inner/wandb"])
def test_a_run_does_not_tell_wandb_where_to_log(
    run: Path, folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings in the working directory name the server that gets the user's key."""
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))
    (run / folder).mkdir(parents=True)
    (run / folder / "settings").write_text("[default]\nbase_url = http://127.0.0.1:9\n")
    monkeypatch.chdir((run / folder).parent)
    assert "settings' in the directory of the run" in refused(
        "resume", str(run), "--steps", "120", "--log", "wandb", "--quiet"
    )(capsys)  # fmt: skip
    monkeypatch.chdir(run.parent)
    loggers.check(["wandb"], run)


# ------------------------------------------------------------------------------------------- links
def lead(run: Path, name: str, target: Path) -> None:
    """Put a symbolic link in the place of a file or a folder of a run."""
    file = run / name
    shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
    file.parent.mkdir(exist_ok=True)
    file.symlink_to(target)


LINKS = [
    "checkpoints", "run.lock", "logs", "logs/run.log", "metrics.csv", "metrics.jsonl", "config.json", "report.json",
    ".config.json.tmp", "best", "videos", "export", "tensorboard", "wandb", "wandb-run.txt", "dumps", "anything",
    "params-params.safetensors",
]  # fmt: skip


@pytest.mark.parametrize("name", LINKS)
def test_a_run_does_not_go_on_through_a_link(
    run: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside"
    if name in ("checkpoints", "logs", "best", "videos", "export", "tensorboard", "wandb", "dumps"):
        source = run / name
        shutil.copytree(source, outside) if source.is_dir() else outside.mkdir()
        (outside / ".tmp-0-0").mkdir()
    else:
        outside.write_bytes((run / name).read_bytes() if (run / name).is_file() else b"mine\n")
    lead(run, name, outside)
    before = {path: path.read_bytes() for path in [outside, *outside.rglob("*")] if path.is_file()}
    for words in (["resume", str(run), "--steps", "120", "--quiet"], ["eval", str(run)], ["compare", str(run)]):
        told = refused(*words)(capsys)
        assert "symbolic link" in told and name in told and "--trust" in told
    refused("export", str(run), "--to", "safetensors")(capsys)
    refused("train", "impala", "--init-from", str(run), "--env", "CartPole-v1", "--run-dir", "x")(capsys)
    assert before == {path: path.read_bytes() for path in [outside, *outside.rglob("*")] if path.is_file()}
    assert outside.is_file() or (outside / ".tmp-0-0").is_dir()


def test_no_file_that_a_run_makes_is_written_through_a_link(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each in turn, whatever runs come to make."""
    names = [path.relative_to(made) for path in sorted(made.rglob("*"))]
    assert len(names) > 12
    for number, name in enumerate(names):
        run = Path(shutil.copytree(made, tmp_path / f"{number}"))
        outside = tmp_path / f"outside-{number}"
        (run / name).rename(outside)
        (run / name).symlink_to(outside)
        before = {path: path.read_bytes() for path in [outside, *outside.rglob("*")] if path.is_file()}
        assert "symbolic link" in refused("resume", str(run), "--steps", "120", "--quiet")(capsys), name
        assert before == {path: path.read_bytes() for path in [outside, *outside.rglob("*")] if path.is_file()}


@pytest.mark.parametrize("content", ["[" * 4_000, "5", '{"launch": -3}', '{"launch": 1e9}', '{"launch": ' + "9" * 400])
def test_the_lock_of_a_stranger_says_nothing_but_counts(run: Path, content: str) -> None:
    (run / "run.lock").write_text(content)
    assert main(["resume", str(run), "--steps", "120", "--quiet"]) == 0
    assert json.loads((run / "run.lock").read_text())["launch"] == 1


def test_a_population_does_not_go_on_through_a_link(
    population: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside"
    shutil.move(population / "members" / "000", outside)
    lead(population, "members/000", outside)
    assert "symbolic link" in refused("resume", str(population), "--steps", "120")(capsys)
    assert main(["resume", str(population), "--steps", "61", "--quiet", "--trust"]) == 0


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["config.json", "report.json", "run.lock", "params.json", "metrics.csv"])
def test_no_command_waits_for_a_pipe_in_a_run(run: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    for words in (["resume", str(run)], ["eval", str(run)], ["compare", str(run)]):
        refused(*words)(capsys)
    if name == "config.json":
        refused("config", "impala", "--config", str(run))(capsys)


def test_folders_within_one_another_without_end_are_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What removes an unfinished checkpoint calls itself for each."""
    folder = os.open(run / "checkpoints", os.O_RDONLY)
    for name in (".tmp-0-0", *["d"] * 1_200):
        os.mkdir(name, dir_fd=folder)
        inner = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    assert "folders within one another" in refused("resume", str(run), "--steps", "120")(capsys)
    subprocess.run(["rm", "-rf", run / "checkpoints"], check=True)  # what cleans up after the test could not


def test_a_file_with_another_name_elsewhere_is_not_written_to(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_bytes((run / "metrics.csv").read_bytes())
    (run / "metrics.csv").unlink()
    os.link(tmp_path / "mine", run / "metrics.csv")
    assert "hard link" in refused("resume", str(run), "--steps", "120")(capsys)
    assert main(["eval", str(run), "--episodes", "1"]) == 0, "what only reads is not led astray"


@pytest.mark.parametrize(
    "words, links",
    [
        (["report", "."], ["report.html"]), (["plot", "."], ["curves.png"]),
        (["plot", ".", "--out", "a.svg"], ["a.svg"]),
        (["draw", "dqn", "--output", "a.txt"], ["a.txt"]), (["eval", ".", "--video", "a.mp4"], ["a.mp4", ".a.tmp.mp4"]),
        (["plan", "dqn", "--env", "CartPole-v1", "--save-costs", "a.json"], ["a.json"]),
        (["plan", "dqn", "--env", "CartPole-v1", "--out", "a.svg"], ["a.svg"]),
        (["resume", ".", "--steps", "120", "--quiet", "--run-dir", "a"], ["a"]),
        (["train", "dqn", "--env", "CartPole-v1", "--run-dir", "a"], ["a"]),
        (["profile", ".", "--run-dir", "a"], ["a"]),
        (["export", ".", "--to", "safetensors", "--out", "a"], ["a", ".a.tmp"]),
        (["record", ".", "--out", "./a", "--episodes", "1"], ["a", ".a.tmp"]),
    ],
)  # fmt: skip
def test_no_file_that_a_command_makes_is_written_through_a_link(
    run: Path, tmp_path: Path, words: list[str], links: list[str], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Such as beside a run of somebody else, where its user stands in its directory."""
    (tmp_path / "file").write_text("mine\n")
    (tmp_path / "folder").mkdir()
    for link in links:
        for target in ("file", "nothing", *(["folder"] if "." in link else [])):  # a folder that is named may be a link
            here = Path(shutil.copytree(run, tmp_path / f"{link}-{target}"))
            beside = here / "here"
            beside.mkdir()
            monkeypatch.chdir(beside)
            (beside / link).symlink_to(tmp_path / target)
            told = [str(run) if word == "." else word for word in words]
            code = main(told)
            capsys.readouterr()
            assert code in (0, 1, 2), (link, target)
            assert (tmp_path / "file").read_text() == "mine\n" and not any((tmp_path / "folder").iterdir()), link
            assert not (tmp_path / "nothing").exists(), link


@pytest.mark.parametrize("hard", [False, True])
def test_a_file_is_put_together_behind_no_link(hard: bool, tmp_path: Path) -> None:
    outside, planted = tmp_path / "outside", tmp_path / ".report.json.tmp"
    outside.write_text("mine\n")
    planted.hardlink_to(outside) if hard else planted.symlink_to(outside)
    write_atomic(tmp_path / "report.json", "{}")
    assert outside.read_text() == "mine\n" and (tmp_path / "report.json").read_text() == "{}"


def test_what_is_written_may_go_to_a_link_of_the_system() -> None:
    require_folder(Path("/dev/stdout"))


def test_runs_of_ones_own_may_lie_behind_a_link(run: Path, tmp_path: Path) -> None:
    """The directory itself, or one above it, is the user's to name."""
    (tmp_path / "here").symlink_to(tmp_path)
    (tmp_path / "this").symlink_to(run)
    assert main(["resume", str(tmp_path / "here" / "r"), "--steps", "120", "--quiet"]) == 0
    assert main(["resume", str(tmp_path / "this"), "--steps", "180", "--quiet"]) == 0
    assert main(["eval", str(tmp_path / "this"), "--episodes", "1"]) == 0


def test_links_in_a_run_of_ones_own_are_followed_where_its_user_says_so(run: Path, tmp_path: Path) -> None:
    shutil.move(run / "checkpoints", tmp_path / "large")
    lead(run, "checkpoints", tmp_path / "large")
    assert main(["resume", str(run), "--steps", "120", "--quiet", "--trust"]) == 0
    assert main(["eval", str(run), "--episodes", "1", "--trust"]) == 0
    assert main(["compare", str(run), "--trust"]) == 0
    assert len([*(tmp_path / "large").iterdir()]) == 2


@pytest.mark.parametrize("name", ["config.json", "report.json", "checkpoints"])
def test_a_list_of_runs_tells_nothing_from_behind_a_link(
    name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.move(run / name, tmp_path / "elsewhere")
    lead(run, name, tmp_path / "elsewhere")
    capsys.readouterr()
    assert main(["runs", str(run.parent)]) == 0
    told = capsys.readouterr()
    assert "impala" not in told.out and "is a symbolic link" in told.err and "it is left out" in told.err
    assert main(["runs", str(run.parent), "--trust"]) == 0
    assert "impala" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------- terminal
ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m\u202egnp.exe\r\x08\u2028[red]bold[/red] $\\x$\nnext"


def test_what_a_file_says_is_shown_as_text(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Path(shutil.copytree(run, run.with_name("other")))

    def change(facts: Any) -> None:
        facts["config"] |= {"env_kwargs": {"size": ESCAPES}, ESCAPES: ESCAPES, "learning_rate": ESCAPES}
        facts["changes"] = [{"steps": 3, "settings": {ESCAPES: [ESCAPES, 1.0]}}]
        facts["init_from"] = ESCAPES

    edit(other / "config.json", change)
    edit(run / "config.json", lambda facts: facts.update(changes=[{"steps": 3, "settings": {ESCAPES: [ESCAPES, 1]}}]))
    capsys.readouterr()
    for words in (
        ["compare", str(run), str(other)], ["eval", str(run), "--episodes", "1"], ["eval", str(other)],
        ["resume", str(other)], ["plot", str(run), str(other), "--out", str(run.with_name("a.svg"))],
        ["config", "impala", "--config", str(other)], ["profile", str(other)], ["eval", str(run / ESCAPES)],
    ):  # fmt: skip
        main(words)
        found = capsys.readouterr()
        shown = found.out + found.err
        assert "\\x1b" in shown or words[0] == "plot", words
        assert {c for c in shown if not c.isprintable()} <= {"\n"}, (words, shown)
    main(["compare", str(run), str(other)])
    assert "[red]bold[/red]" in capsys.readouterr().out.replace("\n", "")
