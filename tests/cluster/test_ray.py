"""Whole runs on Ray: on an instance of their own, and on several raylets on this machine (Ray's own cluster utilities).

Most of those of several nodes, each of which starts a dozen processes and more, are asked for by SHOAL_TEST_CLUSTER=1.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psutil
import pytest
import torch

import shoal
from shoal.api import Context, Field, UsageError, spec_nbytes
from shoal.cli import main as cli
from shoal.metering.aggregator import Aggregator
from shoal.program import Channel, Program
from shoal.ray_runtime import placement
from shoal.ray_runtime.instance import attached, check_installed, own
from shoal.records import checkpoint
from shoal.runtime.launch import Launch, Stop
from shoal.shm.layout import Plan
from shoal.systems import SYSTEMS as EVERY_SYSTEM, load

ray = pytest.importorskip("ray")
sys.path.append(str(Path(__file__).parents[1] / "runtime"))

sys.path.append(str(Path(__file__).parents[1] / "systems"))

from helpers import config  # noqa: E402
from test_conformance import logged  # noqa: E402
from test_conformance_groups import ROW, Poster, ranks  # noqa: E402

from shoal.ray_runtime.runtime import RayRuntime  # noqa: E402
from shoal.ray_runtime.station import Station  # noqa: E402
from shoal.ray_runtime.supervisor import RaySupervisor  # noqa: E402

pytestmark = pytest.mark.timeout(300, func_only=True)
SMALL: dict[str, Any] = dict(env="CartPole-v1", preset="none", device="cpu", hidden=(8,), envs=4, unroll=16, actors=2)
several_nodes = pytest.mark.skipif("SHOAL_TEST_CLUSTER" not in os.environ, reason="SHOAL_TEST_CLUSTER=1 asks for it")


# ------------------------------------------------------------------------------- an instance of its own
def test_nobody_else_reaches_the_files_of_a_ray_of_its_own() -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with own({"CPU": 1.0}):
        assert signal.getsignal(signal.SIGTERM) is handler, "Ray's would end a run without a checkpoint"
        from ray._private.worker import _global_node

        session = Path(_global_node.get_session_dir_path())
        assert (session / "sockets").is_dir()
        assert any(stat.S_IMODE(folder.stat().st_mode) == 0o700 for folder in session.parents)


def test_a_run_goes_from_local_processes_to_a_ray_of_its_own_and_back(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")  # nobody has named it to this run
    begun = shoal.train("impala", **SMALL, batch=2, steps=1000, runtime="local", run_dir=tmp_path / "run")
    assert begun.report is not None
    run = shoal.resume(tmp_path / "run", steps=2 * begun.report.steps, runtime="ray")
    assert run.report is not None and run.report.reason == "steps"
    assert 2 * begun.report.steps <= run.report.steps < 2 * begun.report.steps + 10_000
    assert run.report.updates > begun.report.updates
    assert not ray.is_initialized() and "RAY_AUTH_TOKEN" not in os.environ
    assert os.environ["RAY_ADDRESS"] == "192.0.2.1:6379"
    assert importlib.import_module("ray._private.ray_constants").ENABLE_RAY_CLUSTER, "what is named next is a cluster"
    left = [" ".join(_command(p)) for p in psutil.Process().children(recursive=True)]
    left = [command for command in left if "/ray/" in command or "ray::" in command]
    left = [command for command in left if "multiprocessing.forkserver" not in command]  # which lists folders
    assert not left, "Ray ends with the run"
    assert {p.name for p in (tmp_path / "run" / "logs").iterdir()} >= {"run.log", "actor-0.log", "learner-0.log"}
    saved = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert saved.manifest["updates"] == run.report.updates
    more = shoal.resume(tmp_path / "run", steps=2 * run.report.steps, runtime="local")
    assert more.report is not None and more.report.steps >= 2 * run.report.steps
    assert more.report.updates > run.report.updates
    assert json.loads((tmp_path / "run" / "config.json").read_text())["runtime"] == "local"


def _command(process: psutil.Process) -> list[str]:
    try:
        found: list[str] = process.cmdline()
    except psutil.Error:
        return []
    return found


# ------------------------------------------------------------------------------------------- sentences
@pytest.mark.parametrize(
    "version, sentence",
    [(None, "needs the package ray, which is not installed: pip install "), ("2.51.2", "found 2.51.2")],
)
def test_no_ray_or_an_old_one(monkeypatch: Any, version: str | None, sentence: str) -> None:
    import importlib.metadata

    def find(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", find)
    with pytest.raises(UsageError, match="the runtime 'ray' needs") as caught:
        check_installed()
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "command, sentence",
    [
        ("train impala --env CartPole-v1 --address auto", "an address ('auto') needs --runtime ray"),
        ("cluster", "shoal cluster has one command, for example: shoal cluster check --address auto"),
        ("cluster check --address here", "(auto, HOST:PORT or ray://HOST:PORT), found 'here'"),
        ("cluster check --address 127.0.0.1:9", "cannot connect to the Ray cluster '127.0.0.1:9': [Errno 111]"),
        ("cluster check", "needs the cluster: --address auto, HOST:PORT or ray://HOST:PORT"),
    ],
)
def test_mistakes(command: str, sentence: str, capsys: Any) -> None:
    assert cli.main(command.split()) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    "error, sentence",
    [
        (RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.52.0\n    Python: 3.12.1\nThis"),
         "': Version mismatch: The cluster was started with: Ray: 2.52.0 Python: 3.12.1 This"),
        (ConnectionError("Failed to connect to Ray cluster at HERE"),
         "at HERE, though something listens there: this was tried without a token (RAY_AUTH_MODE, RAY_AUTH_TOKEN or "),
    ],
)  # fmt: skip
def test_what_a_cluster_says_that_cannot_be_joined(
    error: Exception, sentence: str, monkeypatch: Any, capsys: Any
) -> None:
    def init(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert cli.main(f"cluster check --address 127.0.0.1:{listening.getsockname()[1]}".split()) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


@pytest.mark.parametrize("listening, expected", [("127.0.0.1", False), ("0.0.0.0", True)])
def test_ray_looks_on_the_loopback_interface_where_a_cluster_listens_only_there(
    listening: str, expected: bool, monkeypatch: Any
) -> None:
    from ray._private import ray_constants

    looked: list[bool] = []
    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", True)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.9")  # as other machines know this one
    monkeypatch.setattr(ray, "init", lambda *_, **__: looked.append(ray_constants.ENABLE_RAY_CLUSTER))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with socket.create_server((listening, 0)) as server, attached(f"127.0.0.1:{server.getsockname()[1]}"):
        assert looked == [expected]
        assert ray_constants.ENABLE_RAY_CLUSTER


def test_a_serial_run_does_not_go_on_elsewhere(tmp_path: Path) -> None:
    shoal.train("impala", **SMALL, batch=2, steps=200, runtime="serial", run_dir=tmp_path / "run")
    with pytest.raises(UsageError, match="started with --runtime serial cannot go on with ray"):
        shoal.resume(tmp_path / "run", steps=10_000, runtime="ray")


# --------------------------------------------------------------------------------------- several nodes
STORE = 80 << 20  # bytes of a node's object store


@pytest.fixture
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster whose head has six processors, or as many as a test says; nodes may be added."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("RAY_enable_worker_prestart", "0")
    monkeypatch.setenv("RAY_health_check_period_ms", "500")
    nodes = Cluster(
        initialize_head=True, head_node_args=dict(num_cpus=getattr(request, "param", 6), object_store_memory=STORE)
    )
    yield nodes
    nodes.shutdown()


@pytest.fixture
def start(cluster: Any, tmp_path: Path) -> Iterator[Any]:
    """Start IMPALA on the cluster, as a command of its own."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        started.append(on(cluster.address, *words))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def on(address: str, *words: str) -> subprocess.Popen[str]:
    """A command of Shoal's, on a cluster."""
    command = [sys.executable, "-m", "shoal", *words, "--runtime", "ray", "--address", address, "--quiet"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def until(true: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    while not true():  # or the timeout of the test
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)


SYSTEMS: dict[str, dict[str, Any]] = {
    "impala": {"batch": 2},
    "dd-ppo": {"minibatches": 2, "epochs": 2, "min-fraction": 1.0},
    "apex-dqn": {"batch": 16, "min-replay": 200, "replay": 5_000, "samples-per-insert": 2.0, "sampler": "rank"},
}


def train(actors: int, run: Path, system: str = "impala", steps: int = 10**9) -> list[str]:
    settings = {**SMALL, **SYSTEMS[system], "actors": actors}
    settings |= {"steps": steps, "checkpoint-every": 3, "run-dir": run}
    return ["train", system, *(word for name, v in settings.items() for word in _flag(name, v))]


def _flag(name: str, value: Any) -> list[str]:
    return [f"--{name}", *map(str, value if isinstance(value, tuple) else (value,))]


ROUNDS = 300


class Answered(Poster):
    """Counts as updates, up to ``ROUNDS``, the rows that it has seen of every member."""

    def step(self) -> None:
        known = self.answered()
        super().step()
        self.ctx.metrics.count("updates", self.answered() - known)

    def answered(self) -> int:
        return min(ROUNDS, int(self.seen.min()))


@several_nodes
def test_every_kind_of_channel_between_two_nodes(cluster: Any, monkeypatch: Any) -> None:
    """Programs of the conformance suite side by side in one launch: their roles check what they get."""

    def alternating(wanted: Any, nodes: Any) -> Any:
        return {node.id: list(wanted[i :: len(nodes)]) for i, node in enumerate(nodes)}, []

    p = Program("everything")
    p.include(logged(2, count=2), "count")
    p.include(logged(2, each=True), "each")
    board = p.channel(Channel("board", "board", ROW))
    p.role("poster", Answered, replicas=2, end=board.member())
    runtime = RayRuntime(cluster.address)
    with pytest.raises(UsageError, match=r"too small for this program: it needs 10 CPUs, found 6 CPUs on 1 node"):
        runtime.check(p)
    cluster.add_node(num_cpus=6, object_store_memory=STORE)
    runtime.check(p)
    monkeypatch.setattr(placement, "fit", alternating)
    enough = 30 + 30 + 2 * ROUNDS  # no more are ever counted: every log is full, and every member has been answered
    report = runtime.launch(p, Launch(seed=3, stop=Stop(updates=enough, seconds=200)))
    assert report.reason == "updates" and report.updates == enough
    assert "board" in runtime.traffic and len(runtime.traffic) >= 3
    seen = report.params["count/log"]["seen"].tolist()
    for writer in (0, 1):
        mine = [n - writer * 10**6 for n in seen if n // 10**6 == writer]
        assert mine == list(range(len(mine)))
    each = report.params["each/log"]["seen"].tolist()
    assert each == [w * 10**6 + n for n in range(30) for w in range(2)]
    report = runtime.launch(ranks(2), Launch(seed=3, stop=Stop(updates=50, seconds=200)))
    assert report.reason == "updates" and report.updates >= 50, "each rank compares its sums, bit for bit"
    messages, nbytes = runtime.traffic["c"]
    item = spec_nbytes(ranks(2).channels["c"].spec) + 2 * 8  # and a number of each rank
    assert messages >= 2 * 50 and nbytes == messages * item, "of two ranks, each sends the other an item a round"


def test_a_node_that_does_not_tell_its_traffic_at_the_end_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Its last news are counted then."""
    told = [SimpleNamespace(gone=False, node=n, sent=None, traffic=dict, name=f"node {n}") for n in "ab"]
    told[0].traffic = lambda: told[0].sent or {"c": (3, 300)}
    told[1].traffic = lambda: told[1].sent or {"c": (4, 400)}

    class Ending(RaySupervisor):
        def __init__(self) -> None:
            self._stations = {station.node: cast(Station, station) for station in told}
            self._aggregator = cast(Aggregator, SimpleNamespace(steps=10))
            self._plan = cast(Plan, SimpleNamespace(divided={}))

        def _ask(self, station: Any, seconds: float, call: Any) -> Any:
            if station.node == "b":
                raise shoal.ShoalError("node b has not answered for 10 s")
            return {"c": (5, 500)}

    ending = Ending()
    with caplog.at_level("INFO", "shoal"):
        ending._say_traffic()
    assert ending.traffic() == {"c": (9, 900)}
    assert "between nodes: node b has not answered for 10 s, and what it has sent since its last news" in caplog.text
    assert "channel 'c', 9 messages, 900 bytes, 90.0 bytes per step" in caplog.text


class Seeing:
    """Tells which GPU it sees."""

    def __init__(self, context: Context, end: Any, log: Any) -> None:
        self.end, self.log, self.metrics = end, log, context.metrics
        end.put({"gpus": np.eye(9)[context.index] * float(os.environ["CUDA_VISIBLE_DEVICES"])})

    def step(self) -> None:
        seen = self.end.get().values["gpus"].sum(0)
        time.sleep(0.05)
        if self.log is not None:
            self.log.publish({"gpus": torch.from_numpy(seen)})
            self.metrics.count("updates")


@several_nodes
@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_each_replica_sees_the_gpu_that_is_its_own(cluster: Any) -> None:
    """GPUs that Ray believes in; one of them is somebody else's."""
    cluster.add_node(num_cpus=4, num_gpus=4, object_store_memory=STORE)
    p = Program("seeing")
    board = p.channel(Channel("board", "board", {"gpus": Field((9,), "float64")}))
    log = p.channel(Channel("log", "params", {"gpus": Field((9,), "float64")}))
    p.role("seeing", Seeing, replicas=3, device="cuda", end=board.member(), log=log.writer(first=True))
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from shoal.ray_runtime.places import _gpus

    ray.init(cluster.address, log_to_driver=False)
    try:
        taken = placement_group([{"GPU": 1.0}])
        where = PlacementGroupSchedulingStrategy(taken, placement_group_bundle_index=0)
        (other,) = ray.get(ray.remote(_gpus).options(num_cpus=0, num_gpus=1, scheduling_strategy=where).remote())
        report = RayRuntime().launch(p, Launch(seed=3, stop=Stop(updates=40, seconds=200)))
    finally:
        ray.shutdown()
    seen = report.params["log"]["gpus"][:3].int().tolist()
    assert sorted([*seen, int(other)]) == [0, 1, 2, 3]


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[str]:
    """The address of a cluster of two nodes, between which replicas are dealt out in turn."""
    from ray.cluster_utils import Cluster

    def alternating(wanted: Any, nodes: Any) -> Any:
        return {node.id: list(wanted[i :: len(nodes)]) for i, node in enumerate(nodes)}, []

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_enable_worker_prestart", "0")
        patch.setattr(placement, "fit", alternating)
        nodes = Cluster(initialize_head=True, head_node_args=dict(num_cpus=8, object_store_memory=STORE))
        nodes.add_node(num_cpus=8, object_store_memory=STORE)
        yield nodes.address
        nodes.shutdown()


SHARDED: dict[str, Any] = {"actors": 2, "replay_shards": 2}


@several_nodes
@pytest.mark.parametrize("system, fields", [("apex-dqn", SHARDED), *((name, {}) for name in EVERY_SYSTEM)])
def test_every_system_learns_on_two_nodes(two_nodes: str, system: str, fields: dict[str, Any]) -> None:
    program = load(system).program(config(system, **fields))
    runtime = RayRuntime(two_nodes)
    report = runtime.launch(program, Launch(seed=3, stop=Stop(updates=5, seconds=240)))
    assert report.reason == "updates" and report.updates >= 5 and report.steps > 0
    assert report.params.keys() == {c.name for c in program.channels.values() if c.kind in ("params", "shared")}
    together = any(c.kind == "shared" for c in program.channels.values())
    assert bool(runtime.traffic) != together, "what changes the same parameters in place stays on one node"
    assert runtime.traffic.keys() <= program.channels.keys()


@pytest.mark.parametrize("system", ["impala", pytest.param("apex-dqn", marks=several_nodes)])
def test_a_run_goes_on_when_a_node_of_actors_is_lost(cluster: Any, start: Any, tmp_path: Path, system: str) -> None:
    """Its actors wait until another node has room for them; nothing is counted twice."""
    far, run = cluster.add_node(num_cpus=2, object_store_memory=STORE), tmp_path / "run"
    process, log = start(*train(7, run, system)), run / "logs" / "run.log"
    until(lambda: bool(checkpoint.completed(run / "checkpoints")) and (run / "logs/actor-6.log").exists(), process)
    cluster.remove_node(far, allow_graceful=False)
    until(lambda: "waits until another node has room for it" in log.read_text(), process)
    cluster.add_node(num_cpus=2, object_store_memory=STORE)
    until(lambda: (run / "logs/actor-6.log").read_text().count(" starts: ") == 2, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143, process.communicate()
    assert "its node was lost" in log.read_text() and "goes on on node" in log.read_text()
    saved = checkpoint.newest(run / "checkpoints")
    counted = saved.read("run")["counts"]
    assert sum(line[0] for lines in counted.values() for line in lines) == saved.steps


@several_nodes
def test_the_node_of_the_learner_is_lost_and_the_run_is_resumed(cluster: Any, start: Any, tmp_path: Path) -> None:
    far, run = cluster.add_node(num_cpus=8, object_store_memory=STORE), tmp_path / "run"  # the larger one
    process = start(*train(4, run))
    until(lambda: bool(checkpoint.completed(run / "checkpoints")), process)
    cluster.remove_node(far, allow_graceful=False)
    _, told = process.communicate()
    assert process.returncode == 1
    assert "learner[0]" in told and "its node was lost" in told and "shoal resume" in told
    steps = checkpoint.newest(run / "checkpoints").steps
    more = start("resume", str(run), "--steps", str(steps + 2000))
    assert more.wait() == 0, more.communicate()
    assert checkpoint.newest(run / "checkpoints").steps >= steps + 2000


@several_nodes
@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_the_node_of_a_rank_is_lost_and_the_run_is_resumed(cluster: Any, start: Any, tmp_path: Path) -> None:
    """In the middle of DD-PPO: rank and host are named, and the run goes on from its checkpoint on what is left."""
    far, run = cluster.add_node(num_cpus=1, object_store_memory=STORE), tmp_path / "run"
    process = start(*train(3, run, "dd-ppo"))
    until(lambda: bool(checkpoint.completed(run / "checkpoints")), process)
    assert (run / "logs/rank-2.log").exists()
    cluster.remove_node(far, allow_graceful=False)
    _, told = process.communicate()
    assert process.returncode == 1 and "its node was lost (node " in told and "shoal resume" in told
    assert re.search(r"rank\[[0-2]\]", told)
    cluster.add_node(num_cpus=1, object_store_memory=STORE)
    steps = checkpoint.newest(run / "checkpoints").steps
    more = start("resume", str(run), "--steps", str(steps + 2000))
    assert more.wait() == 0, more.communicate()
    assert checkpoint.newest(run / "checkpoints").steps >= steps + 2000


@several_nodes
def test_the_head_is_lost(cluster: Any, start: Any, tmp_path: Path) -> None:
    """Its part that keeps the books, that is: everything else still answers, and so the run ends in order."""
    run = tmp_path / "run"
    process = start(*train(4, run))
    until(lambda: bool(checkpoint.completed(run / "checkpoints")), process)
    cluster.head_node.kill_gcs_server()
    _, told = process.communicate()
    assert process.returncode == 1 and "the head of the Ray cluster has not answered for" in told
    assert "shoal resume" in told


@several_nodes
def test_from_outside_of_the_cluster(monkeypatch: Any, tmp_path: Path) -> None:
    """By Ray's client (``ray://``), behind a token: a run, its resume, and the head lost in the middle of it."""
    pytest.importorskip("grpc")
    ports, run = [_free() for _ in range(2)], tmp_path / "run"
    for name, value in {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64, "GRPC_ENABLE_FORK_SUPPORT": "0"}.items():
        monkeypatch.setenv(name, value)
    options = f"--port={ports[0]} --ray-client-server-port={ports[1]} --num-cpus=6 --object-store-memory={STORE}"
    begin = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--include-dashboard=false"]
    head = subprocess.Popen([*begin, *options.split()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"ray://127.0.0.1:{ports[1]}"
    try:
        until(lambda: _listens(ports[1]), head)
        process = on(address, *train(2, run, steps=1000))
        _, told = process.communicate()
        assert process.returncode == 0, told
        steps = checkpoint.newest(run / "checkpoints").steps
        assert steps >= 1000
        process = on(address, "resume", str(run), "--steps", str(10**9))
        until(lambda: checkpoint.newest(run / "checkpoints").steps > steps, process)
        for part in psutil.Process(head.pid).children(recursive=True):
            part.kill()
        _, told = process.communicate()
        assert process.returncode == 1 and "Traceback" not in told, told
        assert "its node was lost" in told or "the head of the Ray cluster has not answered for" in told
        assert "shoal resume" in told
    finally:
        for part in psutil.Process(head.pid).children(recursive=True):
            part.kill()
        head.kill()
        head.wait()


def _free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
    return port


def _listens(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0
