"""A gradient shared by several processes is the gradient of one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest
import torch
from helpers import config, record_batches, run, spy

from shoal.algos.ppo import PPOLearner, PPOSettings
from shoal.algos.shares import Shares
from shoal.api import Batch, RoleFailed, Stop, Tensors
from shoal.nets import NatureCNN
from shoal.ops import Adam
from shoal.runtime.aggregator import Snapshot
from shoal.runtime.local import LocalRuntime
from shoal.runtime.team import Team
from shoal.systems import recurrent_ppo
from shoal.systems.recurrent_ppo import learner_processes

pytestmark = [pytest.mark.timeout(100), pytest.mark.skipif(sys.platform != "linux", reason="teams fork")]


def learner(cfg: recurrent_ppo.Config, team: Team | None) -> PPOLearner:
    torch.manual_seed(0)
    nets = recurrent_ppo.network(cfg)
    names = set(PPOSettings.__dataclass_fields__) - {"total_steps"}
    settings = PPOSettings(**{n: getattr(cfg, n) for n in names}, total_steps=cfg.steps)
    return PPOLearner(nets, Adam(nets.parameters(), eps=1e-5), settings, 0, team)


@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize("members", [2, 3])
def test_a_team_learns_what_one_learns(core: str, members: int) -> None:
    """Over several updates, with normalised observations (buffers that change) and rows that do not count."""
    cfg = config("recurrent-ppo", env="CartPole-v1", core=core, core_size=8, minibatches=1 if core == "gru" else 2,
                 normalise_obs=True, normalise_reward=True, entropy_cost=0.01, clip_value=True)  # fmt: skip
    batches = record_batches(program := recurrent_ppo.program(cfg))
    run(program, 4)
    team = Team(members)
    try:
        alone, together = learner(cfg, None), learner(cfg, team)
        for batch, _ in batches:
            given = Batch({k: v.clone() for k, v in batch.items.items()})
            given.items["valid"][3, 1] = False
            one, many = alone.update(given), together.update(given)
            assert one.metrics.keys() == many.metrics.keys()
            for name, value in one.metrics.items():
                assert float(many.metrics[name]) == pytest.approx(float(value), rel=1e-3, abs=1e-5), name
        for name, tensor in alone.params().items():
            torch.testing.assert_close(together.params()[name], tensor, rtol=1e-4, atol=1e-6, msg=name)
    finally:
        team.close()


@pytest.mark.parametrize("members", [1, 2])
def test_the_gradient_of_convolutions_is_in_the_order_of_their_weights(members: int) -> None:
    """A fused optimiser pairs numbers by their place in memory, and convolutions give theirs with the channels last."""
    torch.manual_seed(0)
    nets = torch.nn.Sequential(NatureCNN(4, 84, 84), torch.nn.Linear(512, 1))
    data = {"image": torch.randint(0, 256, (12, 4, 84, 84), dtype=torch.uint8), "target": torch.randn(12)}

    def loss(data: Tensors, rows: torch.Tensor, constants: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
        error = nets(data["image"][rows]).squeeze(-1) - data["target"][rows]
        return constants[0] * error.square().sum(), torch.zeros(1)

    team = Team(members) if members > 1 else None
    shares = Shares(nets, loss, 1, team)
    try:
        shares.load(data)
        shares.backward(torch.arange(12), [0.5])
        for p in nets.parameters():
            assert p.grad is not None and p.grad.stride() == p.stride()
        wanted = torch.autograd.grad(loss(data, torch.arange(12), [0.5])[0], [*nets.parameters()])
        assert any(g.stride() != p.stride() for p, g in zip(nets.parameters(), wanted, strict=True)), "else no test"
        torch.testing.assert_close([p.grad for p in nets.parameters()], [*wanted], rtol=1e-4, atol=1e-4)
    finally:
        if team is not None:
            team.close()


def test_how_many_processes_share_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(**fields: object) -> int:
        return learner_processes(recurrent_ppo.Config(**{"device": "cpu", "actors": 2, **fields}))  # type: ignore[arg-type]

    monkeypatch.setattr(recurrent_ppo, "cores", lambda: 4)
    large = dict(envs=512, unroll=16, minibatches=2)
    assert chosen(**large) == 4
    assert chosen(envs=64, unroll=16, minibatches=2) == 2  # 1,024 steps: two shares that pay
    assert chosen(envs=16, unroll=32, minibatches=4) == 1
    assert chosen(**large, core="lstm") == 1
    assert chosen(**large, learner_processes=1) == 1
    assert chosen(**large, learner_processes=3) == 3
    assert chosen(**large, device="cuda") == 1


def test_a_killed_share_ends_the_run_by_name_and_leaves_nothing(tmp_path: Path) -> None:
    told, killed = tmp_path / "learner", []

    class Kill:
        def update(self, snapshot: Snapshot) -> None:
            if snapshot.updates and not killed:
                (copy,) = psutil.Process(int(told.read_text())).children()
                killed.append(copy.pid)
                copy.kill()

    cfg = recurrent_ppo.Config(env="CartPole-v1", actors=1, envs=8, unroll=16, learner_processes=2)
    program = spy(recurrent_ppo.program(cfg), "learner", lambda role: told.write_text(str(os.getpid())))
    with pytest.raises(RoleFailed, match=r"which shared the work of this one, killed by SIGKILL"):
        LocalRuntime().launch(program, seed=0, stop=Stop(seconds=60), observers=[Kill()], interval=0.05)
    assert len(killed) == 1 and not psutil.pid_exists(killed[0])
    assert not psutil.pid_exists(int(told.read_text()))
