"""DD-PPO: what its paper and fact sheet promise of ranks, one by one."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import config, run, spy

from shoal.api import Context, RoleFailed, Rows, ShoalError, Tensors, UsageError
from shoal.local.runtime import LocalRuntime
from shoal.metering.recorder import Recorder
from shoal.nets.recurrent import column_axis
from shoal.nets.resnet import ResNet50
from shoal.records import checkpoint
from shoal.records.checkpoint import SaveOptions
from shoal.roles.rank import PROGRESS, RankRole
from shoal.runtime.launch import Launch, Stop
from shoal.systems import dd_ppo
from shoal.systems.dd_ppo import RankLearner, mean_variance, moments, normalised

SMALL = dict(env="CartPole-v1", device="cpu", precision="fp32", steps=20_000)


def learner(cfg: dd_ppo.Config, ranks: int) -> RankLearner:
    torch.manual_seed(0)
    return RankLearner(cfg, dd_ppo.network(cfg), cfg.steps, 0, ranks)


def rollout(cfg: dd_ppo.Config) -> Tensors:
    """The first that the system collects, in one rank: no episode ends in it, so that all steps count."""
    found: list[Tensors] = []

    def record(role: RankRole) -> None:
        moments = role.learner.moments

        def recorded(items: Tensors) -> Any:
            found.append({k: v.clone() for k, v in items.items()})
            return moments(items)

        role.learner.moments = recorded  # type: ignore[method-assign]

    run(spy(dd_ppo.program(cfg), "rank", record), 1)
    assert found[0]["valid"].all()
    return found[0]


def together(learners: list[RankLearner], rollouts: list[Tensors]) -> list[Any]:
    """One update of all ranks; what each reports."""
    given = [one.moments(items) for one, items in zip(learners, rollouts, strict=True)]
    sums = {name: torch.from_numpy(np.asarray(np.sum([item[name] for item in given], 0))) for name in given[0]}
    steps = {one.begin(sums) for one in learners}
    assert steps == {sum(int(items["valid"].sum()) for items in rollouts)}, "real steps, of all ranks"
    done = [False]
    while not done[0]:
        items: list[Any] = []
        for one in learners:
            size = sum(p.numel() for p in one.parameters)
            items.append({"gradient": np.zeros(size, np.float32), "metrics": np.zeros(8)})
            one.gradient(items[-1])
        means = {name: torch.from_numpy(np.mean([item[name] for item in items], 0)) for name in items[0]}
        done = [one.descend(means) for one in learners]
        assert len(set(done)) == 1, "all ranks end their update together"
    return [one.report().metrics for one in learners]


# ------------------------------------------------------------------------------------- identities
@pytest.mark.parametrize("core,layers", [("none", 1), ("lstm", 1), ("lstm", 2)])
def test_two_ranks_are_one_of_twice_the_environments(core: str, layers: int) -> None:
    """ddppo.md 4.2, with everything that is added up over ranks: advantages, observations, rewards, steps."""
    fields = dict(core=core, core_size=12, core_layers=layers, normalise_obs=True, normalise_reward=True)
    fields |= dict(minibatches=1, epochs=3)
    cfg = config("dd-ppo", **SMALL, **fields, actors=1, envs=8)
    items = rollout(cfg)
    halves = [{k: v.chunk(2, column_axis(k))[i].contiguous() for k, v in items.items()} for i in (0, 1)]
    one, two = [learner(cfg, 1)], [learner(cfg, 2), learner(cfg, 2)]
    for _ in range(3):
        whole, parts = together(one, [items]), together(two, halves)
        for name in ("kl", "entropy", "grad_norm", "learning_rate"):
            assert parts[0][name] == pytest.approx(whole[0][name], rel=1e-3, abs=1e-6), name
    assert one[0].env_steps == two[0].env_steps
    for name, value in one[0].params().items():
        torch.testing.assert_close(two[0].params()[name], value, atol=2e-5, rtol=2e-4)
        assert torch.equal(two[0].params()[name], two[1].params()[name]), "bitwise equal on all ranks"


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_the_first_minibatch_finds_what_the_actor_stored(core: str) -> None:
    """ddppo.md 4.11: its ratio is 1, also after the core's state was cleared."""
    cfg = config("dd-ppo", **SMALL, core=core, core_size=12, normalise_obs=True)
    seen: list[float] = []

    def watch(role: RankRole) -> None:
        report = role.learner.report

        def reported() -> Any:
            update = report()
            seen.append(float(update.metrics["ratio_error"]))
            return update

        role.learner.report = reported  # type: ignore[method-assign]

    run(spy(dd_ppo.program(cfg), "rank", watch), 6)
    assert len(seen) == 6 and max(seen) < 1e-4


def test_without_stragglers_preemption_changes_nothing() -> None:
    """ddppo.md 4.10: sync_frac above 1 is synchronous PPO; in serial all ranks are equally fast."""
    reports = [
        run(dd_ppo.program(config("dd-ppo", **SMALL, actors=4, sync_frac=frac)), 6).params["params"]
        for frac in (0.6, 2.0)
    ]
    assert all(torch.equal(reports[0][name], reports[1][name]) for name in reports[0])


def test_moments_are_those_of_all_ranks() -> None:
    """ddppo.md 4.3: the mean of variances would give 1."""
    mask = torch.ones(2, dtype=torch.bool)
    ranks = [torch.tensor([1.0, 3.0]), torch.tensor([5.0, 7.0])]
    sums = torch.stack([moments(x, mask) for x in ranks]).sum(0)
    mean, variance, count = mean_variance(sums)
    assert (float(mean), float(variance), float(count)) == (4.0, 5.0, 4.0)
    torch.testing.assert_close(normalised(ranks[0], sums), torch.tensor([-3.0, -1.0]) / (5.0 + 1e-5) ** 0.5)


def test_a_short_rollout_counts_as_much_as_a_long_one() -> None:
    """ddppo.md 4.5: the mean of ranks' means, whatever their steps."""
    cfg = config("dd-ppo", **SMALL, actors=1, envs=4, minibatches=1, epochs=1, normalise_advantage=False)
    items = rollout(cfg)
    short = {k: v if column_axis(k) == 0 else v[: len(v) - 6] for k, v in items.items()}
    alone = []
    for given in (short, items):
        one = learner(cfg, 1)
        out = {"gradient": np.zeros(sum(p.numel() for p in one.parameters), np.float32), "metrics": np.zeros(8)}
        one.begin({name: torch.from_numpy(np.asarray(a)) for name, a in one.moments(given).items()})
        one.gradient(out)
        alone.append(out["gradient"])
    assert not np.allclose(alone[0], alone[1])
    pair = [learner(cfg, 2), learner(cfg, 2)]
    caught: list[Tensors] = []
    descend = pair[0].descend
    pair[0].descend = lambda means: (caught.append(means), descend(means))[1]  # type: ignore[method-assign,func-returns-value]
    together(pair, [short, items])
    np.testing.assert_allclose(caught[0]["gradient"], (alone[0] + alone[1]) / 2, atol=1e-7)


# ------------------------------------------------------------------------------------- preemption
class Others:
    """A board on which so many of the other ranks have ended their first rollout."""

    def __init__(self, ranks: int, ended: int) -> None:
        self.rollouts = np.array([0] + [1] * ended + [0] * (ranks - 1 - ended))

    def ready(self) -> bool:
        return True

    def get(self) -> Rows:
        return Rows({PROGRESS: self.rollouts}, self.rollouts)

    def put(self, row: Any) -> None:
        self.rollouts[0] = int(row[PROGRESS])


class Collected:
    """Stands for environments: only counts."""

    def __init__(self, steps: int) -> None:
        self.steps, self.taken, self.took = steps, 0, 0

    def advance(self, steps: int) -> None:
        self.taken = min(self.taken + steps, self.steps)

    def take(self) -> Tensors:
        self.took, self.taken = self.taken, 0
        return {}


class Nothing:
    pending = False

    def put(self, items: Any) -> None: ...
    def moments(self, items: Any) -> None: ...
    def params(self) -> None: ...
    def latest(self) -> None: ...


def ends_at(others: Others, ranks: int, steps: int, sync_frac: float = 0.6, min_fraction: float = 0.25) -> int:
    """After how many steps a rank ends its rollout."""
    nothing: Any = Nothing()
    collected: Any = Collected(steps)
    ctx = Context("rank", 0, ranks, 0, 0, Recorder())
    rank = RankRole(
        ctx, lambda own: collected, nothing, moments=nothing, gradients=nothing, progress=others, params=None,
        initial=nothing, sync_frac=sync_frac, min_fraction=min_fraction, load=nothing,
    )  # fmt: skip
    while not collected.took:
        rank.step()
    assert rank.rollouts == 1 and others.rollouts[0] == 1, "a rank that was cut counts as well"
    return int(collected.took)


@pytest.mark.parametrize(
    "ended, sync_frac, expected",
    [(39, 0.6, 32), (38, 0.6, 128), (63, 0.6, 32), (63, 1.01, 128), (0, 0.6, 128)],
)
def test_when_a_straggler_is_cut(ended: int, sync_frac: float, expected: int) -> None:
    """ddppo.md 4.4: T = 128, G = 64: at step 32 at the earliest, and when 39 others (of 38.4) have ended."""
    assert ends_at(Others(64, ended), 64, 128, sync_frac) == expected


def test_a_rank_keeps_its_least_part() -> None:
    assert ends_at(Others(4, 3), 4, 100, min_fraction=0.5) == 52, "the first look after half of it, at every 4th step"
    assert ends_at(Others(4, 3), 4, 10, min_fraction=0.0) == 1


class Sleepy:
    """Makes one rank slow."""

    def __init__(self, program: Any) -> None:
        spy(program, "rank", self._slow)

    @staticmethod
    def _slow(role: RankRole) -> None:
        import time

        if role.ctx.index == 2:
            advance = role.collector.advance

            def slowly(steps: int) -> None:
                time.sleep(0.02)
                advance(steps)

            role.collector.advance = slowly  # type: ignore[method-assign]


def test_a_straggler_is_cut_and_all_stay_equal() -> None:
    """In processes; ``check_every`` raises if one rank's parameters differ."""
    cfg = config("dd-ppo", **SMALL, actors=3, unroll=32, min_fraction=0.25, check_every=1)
    program = dd_ppo.program(cfg)
    Sleepy(program)
    report = LocalRuntime().launch(program, Launch(seed=0, stop=Stop(updates=8)))
    full = 3 * cfg.envs * cfg.unroll * report.updates
    assert report.reason == "updates" and report.steps < 0.97 * full, "the slow rank's rollouts were short"


# ------------------------------------------------------------------------------------------ safety
def test_a_rank_that_is_killed_is_named_and_the_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Its sibling does not hang. After the resume, ``check_every`` raises if the states did not belong together."""
    cfg = config("dd-ppo", **SMALL, actors=2, check_every=1, core="lstm", core_size=8)
    program = dd_ppo.program(cfg)

    def mortal(role: RankRole) -> None:
        step = role.step

        def killed() -> None:
            step()
            saved = checkpoint.completed(tmp_path / "checkpoints")
            if role.ctx.index == 1 and role.ctx.generation == 0 and role.moments.pending and saved:
                os.kill(os.getpid(), signal.SIGKILL)

        role.step = killed  # type: ignore[method-assign]

    spy(program, "rank", mortal)
    saving = SaveOptions(tmp_path / "checkpoints", every=0.2)
    with pytest.raises(RoleFailed, match=r"(?s)rank\[1\].*SIGKILL"):
        LocalRuntime().launch(program, Launch(stop=Stop(seconds=60), saving=saving))
    before = checkpoint.newest(saving.folder)
    updates = before.manifest["updates"]
    launch = Launch(stop=Stop(updates=updates + 10), saving=replace(saving, launch=1), resume=before)
    report = LocalRuntime().launch(program, launch)
    assert report.reason == "updates" and report.updates >= updates + 10


def test_ranks_that_drift_apart_are_noticed() -> None:
    cfg = config("dd-ppo", **SMALL, check_every=1)
    program = dd_ppo.program(cfg)

    def drift(role: RankRole) -> None:
        if role.ctx.index == 1:
            descend = role.learner.descend

            def wrong(means: Tensors) -> bool:
                done = descend(means)
                with torch.no_grad():
                    role.learner.parameters[0].view(-1)[0] += 1e-7  # type: ignore[attr-defined]
                return done

            role.learner.descend = wrong  # type: ignore[method-assign]

    with pytest.raises(ShoalError, match="parameters of 2 ranks are not equal before update 1"):
        run(spy(program, "rank", drift), 5)


def test_all_ranks_begin_with_the_parameters_of_the_first() -> None:
    ranks: list[RankRole] = []
    run(spy(dd_ppo.program(config("dd-ppo", **SMALL, actors=3)), "rank", ranks.append), 2)
    first, *others = [r.learner.params() for r in ranks]
    assert all(torch.equal(first[name], other[name]) for other in others for name in first)


def test_what_cannot_be_is_refused() -> None:
    for fields, expected in (
        (dict(core="lstm", envs=6, minibatches=4), r"minibatches \(4\) must divide a rank's envs \(6\)"),
        (dict(envs=2, unroll=8, minibatches=5), "no more than the steps of the shortest rollout"),
        (dict(learner_processes=2), "ranks share gradients"),
    ):
        with pytest.raises(UsageError, match=expected):
            dd_ppo.program(config("dd-ppo", **{**SMALL, "min_fraction": 0.25, **fields}))
    uncut = dict(SMALL, min_fraction=0.25, envs=2, unroll=8, minibatches=5, sync_frac=2.0)
    assert dd_ppo.program(config("dd-ppo", **uncut)).roles  # where nobody is cut short, every rollout is whole


def test_more_ranks_than_the_machine_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.runtime.memory.available", lambda: 8 << 30)
    LocalRuntime().check(dd_ppo.program(config("dd-ppo", **SMALL, actors=16)))
    with pytest.raises(UsageError, match=r"of memory .* \(processes [\d.]+ GiB, .*but 8.00 GiB is available: .*actors"):
        LocalRuntime().check(dd_ppo.program(config("dd-ppo", **SMALL, actors=1500)))


def test_the_papers_frames() -> None:
    """ddppo.md 4.8: 64 ranks of 4 environments and 128 steps: 32,768 a update, 76,294 updates."""
    cfg = dd_ppo.Config(**{**dd_ppo.PAPER, "actors": 64, "env": "CartPole-v1"})
    frames = cfg.num_actors() * cfg.envs * cfg.unroll
    assert frames == 32_768 and round(cfg.steps / frames) == 76_294


def test_the_papers_network() -> None:
    fields = {**dd_ppo.PAPER, "env": "pointgoal:depth", "env_kwargs": {"height": 256, "width": 256}, "actors": 1}
    with torch.device("meta"):
        nets = dd_ppo.network(dd_ppo.Config(**fields))
    (torso,) = nets.encoder.images.values()
    assert isinstance(torso, ResNet50) and torso.features == 512
    rnn = nets.core.rnn
    assert isinstance(rnn, torch.nn.LSTM) and (rnn.num_layers, rnn.hidden_size, rnn.input_size) == (2, 512, 512 + 32)


@pytest.mark.parametrize("cores,ranks", [(1, 1), (3, 2), (8, 8), (16, 8)])
def test_preset_environments_are_shared_by_ranks_with_whole_trajectories(cores: int, ranks: int) -> None:
    cfg = dd_ppo.Config(**{**dd_ppo.PRESETS["pointgoal"], "actors": 1})
    assert cfg.sharing(cores) == ranks
