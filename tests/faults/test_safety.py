"""No file can make Shoal run code, nobody else can read a run, and nothing listens on the network."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import pickle
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from trainings import SMALL, Training

import shoal
from shoal.api import ShoalError
from shoal.shm.arena import Arena

pytestmark = pytest.mark.timeout(110)
SOURCES = sorted((Path(__file__).parents[2] / "shoal").rglob("*.py"))
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "joblib", "shelve", "marshal", "cloudpickle"}
LOADERS = {"load", "loads", "Unpickler", "open"}
OWN_CHILDREN = {  # between a run and its own children, over pipes that they inherit: no file, no socket
    ("envs/registration.py", "pickle.loads"),  # what the program registered, for the processes that step it
    ("local/telemetry.py", "pickle.loads"),
    ("local/child.py", "cloudpickle.loads"),
    ("local/apart.py", "cloudpickle.loads"),
    ("ray_runtime/agent.py", "cloudpickle.loads"),  # of the run's own driver, by Ray, whose connections have a token
    ("run/population/slots.py", "cloudpickle.loads"),
    ("run/population/search.py", "cloudpickle.loads"),
}


def unsafe_calls(tree: ast.AST) -> Iterator[str]:
    """Calls that could run code from what they read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNSAFE_MODULES:
            yield f"from {node.module} import"  # would hide a call from this test
        if isinstance(node, ast.Attribute):  # whoever calls it, as in map(pickle.loads, found)
            module, _, function = ast.unparse(node).rpartition(".")
            if module in UNSAFE_MODULES and function in LOADERS:
                yield f"{module}.{function}"
        if not isinstance(node, ast.Call):
            continue
        name, keywords = ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}
        module, _, function = name.rpartition(".")
        if name == "torch.load" and keywords.get("weights_only") != "True":
            yield name
        if name in ("np.load", "numpy.load", "np.memmap") and keywords.get("allow_pickle", "False") != "False":
            yield name
        if module == "yaml" and function in ("load", "load_all", "unsafe_load", "full_load"):
            yield name
        if name in ("eval", "exec", "compile", "os.system", "os.popen") or keywords.get("shell") == "True":
            yield name


def test_nothing_is_unpickled_from_a_file() -> None:
    found = {
        (path.as_posix().rpartition("shoal/")[2], name)
        for path in SOURCES
        for name in unsafe_calls(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found <= OWN_CHILDREN


@pytest.mark.parametrize(
    "text, found",
    [
        ("pickle.load(f)", ["pickle.load"]),
        ("map(pickle.loads, found)", ["pickle.loads"]),
        ("torch.load(p)", ["torch.load"]),
        ("torch.load(p, weights_only=True)", []),
        ("np.load(p, allow_pickle=True)", ["np.load"]),
        ("np.load(p)", []),
        ("yaml.load(text)", ["yaml.load"]),
        ("yaml.safe_load(text)", []),
        ("from pickle import load", ["from pickle import"]),
        ("subprocess.run(c, shell=True)", ["subprocess.run"]),
        ("net.eval()", []),
    ],
)
def test_the_finder_of_unsafe_calls(text: str, found: list[str]) -> None:
    assert list(unsafe_calls(ast.parse(text))) == found


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> shoal.Run:
    path = tmp_path_factory.mktemp("runs") / "r"
    return shoal.train(
        "impala", env="CartPole-v1", runtime="serial", run_dir=path, preset="none", steps=200, actors=1, envs=2,
        hidden=(4,),
    )  # fmt: skip


@pytest.fixture
def run(finished: shoal.Run, tmp_path: Path) -> shoal.Run:
    """A copy of it."""
    return shoal.Run.open(shutil.copytree(finished.path, tmp_path / "r"))


@contextlib.contextmanager
def planted(file: Path, content: bytes) -> Iterator[None]:
    """The file holds something else for a while."""
    good = file.read_bytes()
    file.write_bytes(content)
    try:
        yield
    finally:
        file.write_bytes(good)


def test_a_planted_pickle_is_refused_before_any_of_it_runs(run: shoal.Run, tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    for file in (run.path / "config.json", run.path / "params.json", *run.path.glob("params-*.safetensors")):
        with planted(file, bomb), pytest.raises(ShoalError):
            shoal.Run.open(run.path).policy()
    shoal.Run.open(run.path).policy()  # it is whole again
    (checkpoint,) = (run.path / "checkpoints").iterdir()
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    for name in manifest["files"]:  # the manifest is planted too, so that it matches
        facts = {**manifest["files"][name], "size": len(bomb), "sha256": hashlib.sha256(bomb).hexdigest()}
        assert facts.keys() == manifest["files"][name].keys()
        text = json.dumps({**manifest, "files": {**manifest["files"], name: facts}})
        both = planted(checkpoint / name, bomb), planted(checkpoint / "manifest.json", text.encode())
        with both[0], both[1], pytest.raises(ShoalError):
            shoal.resume(run.path, steps=400)
    assert not (tmp_path / "exploded").exists()
    pickle.loads(bomb)
    assert (tmp_path / "exploded").exists(), "the bomb works"


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/../../outside.safetensors"])
def test_a_path_out_of_the_run_is_not_followed(run: shoal.Run, name: str) -> None:
    index = run.path / "params.json"
    (params,) = run.path.glob("params-*.safetensors")
    (run.path.parent / "outside.safetensors").write_bytes(params.read_bytes())
    facts = json.loads(index.read_text())
    facts["channels"]["params"]["file"] = name
    index.write_text(json.dumps(facts))
    with pytest.raises(ShoalError, match="lacks the file"):
        shoal.Run.open(run.path).policy()


def test_only_the_owner_can_read_a_run(finished: shoal.Run) -> None:
    assert stat.S_IMODE(finished.path.stat().st_mode) == 0o700
    for path in finished.path.rglob("*"):
        assert path.stat().st_uid == os.getuid()


def test_nobody_else_reaches_the_shared_memory() -> None:
    arena = Arena(4096)
    descriptors = [fd for fd in os.listdir("/proc/self/fd") if "memfd:shoal" in _target(fd)]
    assert len(descriptors) >= 2 and all(stat.S_IMODE(os.stat(int(fd)).st_mode) == 0o600 for fd in descriptors)
    if os.getuid() == 0:  # try as another user
        path = f"/proc/{os.getpid()}/fd/{descriptors[0]}"
        child = os.fork()
        if child == 0:
            os.setgid(65534)
            os.setuid(65534)
            try:
                os.open(path, os.O_RDWR)
            except PermissionError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    arena.close()


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""


def test_nothing_listens_on_the_network(tmp_path: Path) -> None:
    training = Training(tmp_path / "a", *SMALL)
    try:
        training.pids("learner-0", "actor-0", "actor-1")
        time.sleep(0.5)
        family = [psutil.Process(training.process.pid)]
        family += family[0].children(recursive=True)
        assert len(family) >= 4
        assert [c for process in family for c in process.net_connections("inet")] == []
    finally:
        training.end()
