"""Too little memory, a tiny /dev/shm, slow actors, a slow learner."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from numbered import SIZE, program
from trainings import ENVIRON, HERE, needs_namespaces

from shoal.api import UsageError
from shoal.local.runtime import LocalRuntime
from shoal.runtime import memory
from shoal.runtime.launch import Launch, Stop

pytestmark = pytest.mark.timeout(110)
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")


def test_a_slow_actor_costs_no_more_than_its_share(tmp_path: Path) -> None:
    """Were the others held up by it, they would send as few items as it does."""
    run = program(tmp_path, tmp_path / "told", writers=4, pause=[0.2, 0.02, 0.02, 0.02])
    LocalRuntime().launch(run, Launch(seed=0, stop=Stop(updates=15, seconds=60)))  # updates are items of writer 0
    seen = json.loads((tmp_path / "told").read_text())
    slow, *others = (seen[str(i)][1] for i in range(4))
    assert min(others) > 4 * slow, "they are ten times as fast, but for what the tests' own load costs"


def test_actors_wait_for_a_slow_learner(tmp_path: Path) -> None:
    """What is in flight is bounded by the channel, however slow its reader."""
    run = program(tmp_path, tmp_path / "told", slow=0.05)
    report = LocalRuntime().launch(run, Launch(seed=0, stop=Stop(updates=15, seconds=60)))
    got = sum(number for _, number in json.loads((tmp_path / "told").read_text()).values())
    assert report.steps - got <= 3 * 4, "three writers, four slots each"


@needs_namespaces
def test_a_tiny_dev_shm_does_not_matter(tmp_path: Path) -> None:
    """As in a container, where it is 64 MB: here it is 64 KB, and the program has 40 MB of shared memory."""
    code = f"""
from pathlib import Path
from numbered import program
from shoal import api
from shoal.local.runtime import LocalRuntime
from shoal.runtime.launch import Launch, Stop
p = program(Path({str(tmp_path)!r}), Path({str(tmp_path)!r}, "told"), capacity={40_000_000 // 3 // SIZE})
report = LocalRuntime().launch(p, Launch(stop=Stop(updates=2000)))
assert p.memory()["items"] > 39e6 and report.updates >= 2000
"""
    script = 'mount -t tmpfs -o size=64k none /dev/shm && "$0" -c "$1" && [ -z "$(ls /dev/shm)" ]'
    command = ["unshare", "-rm", "sh", "-c", script, sys.executable, code]
    done = subprocess.run(command, env=ENVIRON, cwd=HERE, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_as_many_open_files_as_replicas_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = [(1_024, 4_096)]
    monkeypatch.setattr("resource.getrlimit", lambda what: limits[-1])
    monkeypatch.setattr("resource.setrlimit", lambda what, pair: limits.append(pair))
    for writers in (20, 700):
        LocalRuntime().check(program(tmp_path, tmp_path / "told", writers=writers))
    ((soft, hard),) = limits[1:]
    mine = len(os.listdir("/proc/self/fd"))
    assert 3 * 701 + mine - 10 < soft < 3 * 701 + mine + 500 and hard == 4_096, "raised once, for those that need it"
    with pytest.raises(
        UsageError, match=r"^1,501 processes need \d,\d\d\d open files, and this machine allows 4,096"
    ) as e:
        LocalRuntime().check(program(tmp_path, tmp_path / "told", writers=1_500))
    need = int(str(e.value).split()[3].replace(",", ""))
    assert 3 * 1_501 + mine - 10 < need < 3 * 1_501 + mine + 500


def test_the_start_of_processes_does_not_wait_for_torch() -> None:
    """The command imports it while the process that replicas are forked from does."""
    code = "import sys, shoal.local.processes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRON, check=False).returncode == 0


@pytest.mark.parametrize("version", [1, 2])
def test_limits_of_control_groups_are_read(tmp_path: Path, version: int) -> None:
    """The group of the process and those around it, whichever leaves least."""
    top = tmp_path / "fs" / ("memory" if version == 1 else "")
    inner = top / "job" / "step"
    inner.mkdir(parents=True)
    limit, used = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
    )
    for group, most, now in ((top, 2**62, 7 << 20), (top / "job", 90 << 20, 50 << 20), (inner, 80 << 20, 5 << 20)):
        (group / limit).write_text(f"{most}\n")
        (group / used).write_text(f"{now}\n")
        (group / "memory.stat").write_text("anon 1\ninactive_file 1048576\n")
    own = tmp_path / "cgroup"
    own.write_text("3:cpu:/\n4:memory:/job/step\n0::/\n" if version == 1 else "0::/job/step\n")
    assert memory.available(own, tmp_path / "fs") == 41 << 20, "job: 90 - 50, and 1 of cache that can be given back"
    (inner / limit).write_text("max\n")
    (top / "job" / limit).write_text("max\n")
    own.write_text("0::/job/step\n")
    assert memory.available(own, tmp_path / "fs") == pytest.approx(psutil.virtual_memory().available, rel=0.1)
    assert memory.available(tmp_path / "none", tmp_path / "fs") > 0


@pytest.mark.skipif(not os.access(MEMORY_GROUPS, os.W_OK), reason="no control group can be made here")
def test_too_little_memory_is_foreseen_in_a_real_control_group(tmp_path: Path) -> None:
    group = MEMORY_GROUPS / f"shoal-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(2 << 30))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        script = f'echo $$ > {group}/cgroup.procs && exec "$0" "$@"'
        train = [sys.executable, "-m", "shoal", "train", "dqn", "--env", "ALE/Pong-v5", "--replay", "1000000"]
        run_dir = ["--run-dir", str(tmp_path / "r")]
        done = subprocess.run(
            ["sh", "-c", script, *train, *run_dir], env=ENVIRON, capture_output=True, text=True, check=False
        )
    finally:
        end = time.monotonic() + 20
        while (group / "cgroup.procs").read_text() and time.monotonic() < end:
            time.sleep(0.1)  # the process that replicas are forked from takes a moment
        group.rmdir()
    assert done.returncode == 2
    assert "of memory for its channels, replays and processes (transitions" in done.stderr
    assert "the replay smaller" in done.stderr
    assert re.search(r"but (1\.\d\d GiB|\d+\.\d MiB) is available", done.stderr), "less than the group's 2 GiB"
