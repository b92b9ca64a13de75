"""UNREAL: A3C where every task is off; each task's loss by hand; the replay that its samples are drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers import config, run, spy
from torch.nn import functional as F

from shoal.api import MASK, Tensors, UsageError, spec_nbytes
from shoal.ops import pixel_change
from shoal.systems import load, unreal
from shoal.systems.unreal.auxiliary import AuxiliaryLearner, AuxiliaryTasks
from shoal.systems.unreal.frame_replay import FRAMES, FrameReplay, frame_replay_nbytes
from shoal.topology.channels import trajectories

OFF = dict(pixel_control=False, reward_prediction=False, value_replay=False)
CATCH: dict[str, Any] = dict(env="toy:catch", device="cpu", precision="fp32", steps=20_000)


# --------------------------------------------------------------------------------------- identities
def test_with_every_task_off_it_is_a3c_bit_for_bit() -> None:
    shared = dict(CATCH, core="lstm", core_size=8, last_action_reward=True, hidden=(), unroll=6, envs=2, actors=2)
    mine = run(load("unreal").program(config("unreal", **shared, **OFF)), 20).params["params"]
    theirs = run(load("a3c").program(config("a3c", **shared)), 20).params["params"]
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[k], v) for k, v in theirs.items())
    on = run(load("unreal").program(config("unreal", **shared)), 20).params["params"]
    assert any(not torch.equal(on[k], v) for k, v in theirs.items())


def test_the_gradient_is_that_of_the_sum_of_all_losses() -> None:
    """Each worker's gradient less that of A3C is that of the weighted losses, on what was drawn."""
    cfg = config("unreal", **CATCH, max_grad_norm=None, pixel_control_cost=0.5, reward_prediction_cost=2.0)
    program = load("unreal").program(cfg)
    checked: list[set[str]] = []

    def attach(worker: Any) -> None:
        learner: AuxiliaryLearner = worker.learner
        gradient = learner.gradient

        def compare(items: Tensors) -> Any:
            state = learner.memory.random.bit_generator.state
            found, update = gradient(items)
            found = {k: v.clone() for k, v in found.items()}  # type: ignore[union-attr]
            after, learner.memory.random.bit_generator.state = learner.memory.random.bit_generator.state, state
            learner.algorithm.nets.zero_grad()
            super(AuxiliaryLearner, learner).differentiate(items)
            terms = learner._terms(items["reward"].shape[1])
            for name, term in terms.items():
                (getattr(cfg, f"{name}_cost") * term).backward(retain_graph=True)
            assert learner.memory.random.bit_generator.state == after
            for name, p in learner.names.items():
                expected = torch.zeros_like(p) if p.grad is None else p.grad
                torch.testing.assert_close(found[name], expected, atol=1e-5, rtol=1e-4)
            checked.append(set(terms))
            return found, update

        learner.gradient = compare  # type: ignore[method-assign]

    run(spy(program, "worker", attach), 8)
    assert checked[-1] == {"pixel_control", "reward_prediction", "value_replay"}


# ------------------------------------------------------------------------------------------- losses
def tasks(**fields: Any) -> tuple[AuxiliaryTasks, Any]:
    cfg = config("unreal", **CATCH, **fields)
    torch.manual_seed(0)
    nets = unreal.network(cfg)
    return AuxiliaryTasks(cfg, nets, cfg.env_spec(), cfg.gamma), cfg


def sequence(seed: int, steps: int, columns: int, same_step: bool = False) -> Tensors:
    """Random images of 20 x 20 with ends of episodes in the middle."""
    g = torch.Generator().manual_seed(seed)
    ended = torch.rand((2, steps, columns), generator=g) < 0.25
    terminated, truncated = ended[0], ended[1] & ~ended[0]
    first = torch.zeros((steps + 1, columns), dtype=torch.bool)
    valid = torch.ones((steps, columns), dtype=torch.bool)
    over = terminated | truncated
    if same_step:
        first[1:] = over
    else:
        for t in range(1, steps):  # the row after an end is not valid, and ends nothing itself
            valid[t] = ~(over[t - 1] & valid[t - 1])
            terminated[t] &= valid[t]
            truncated[t] &= valid[t]
            over[t] &= valid[t]
        first[1:] = ~valid
    items = {
        "obs": torch.randint(0, 256, (steps + 1, columns, 1, 20, 20), generator=g).byte(),
        "obs/last_action": torch.randint(0, 3, (steps + 1, columns, 1), generator=g),
        "obs/last_reward": torch.randn((steps + 1, columns, 1), generator=g), "first": first, "valid": valid,
        "action": torch.randint(0, 3, (steps, columns), generator=g), "terminated": terminated, "truncated": truncated,
        "reward": torch.randn((steps, columns), generator=g),
    }  # fmt: skip
    return items | ({"final_value": torch.randn((steps, columns), generator=g)} if same_step else {})


@pytest.mark.parametrize("same_step,masked", [(False, False), (True, False), (False, True)])
def test_pixel_control_by_hand(same_step: bool, masked: bool) -> None:
    """n-step Q-learning in each cell, backwards, step by step; nothing of another episode is used, and no action that
    is forbidden."""
    both, cfg = tasks(pixel_control_gamma=0.8)
    items = sequence(1, 9, 3, same_step)
    if masked:
        items[MASK] = torch.rand((10, 3, 3), generator=torch.Generator().manual_seed(5)) < 0.5
        items[MASK][:9].scatter_(2, items["action"][..., None], True)
        items[MASK][9, :, 0] = True
    assert bool(items["terminated"].any()) and bool(items["truncated"].any())
    found = both.pixel_control(items)
    obs = {k: v for k, v in items.items() if k.startswith("obs")}
    q = both.nets.pixel_control(both.nets.features(obs, items["first"])).detach()  # type: ignore[misc]
    assert q.shape == (10, 3, 3, 4, 4)
    if masked:
        q = q.masked_fill(~items[MASK][..., None, None], -torch.inf)
    change = pixel_change(items["obs"][:-1], items["obs"][1:], 4, (4, 4)) / 255
    total = 0.0
    for b in range(3):
        back = q[-1, b].amax(0)
        for t in reversed(range(9)):
            terminated, truncated = bool(items["terminated"][t, b]), bool(items["truncated"][t, b])
            if same_step and (terminated or truncated):
                back = q[t, b].amax(0)
                continue  # what was seen last is not known: the step before looks no further than this one
            if not items["valid"][t, b]:
                back = q[t, b].amax(0)  # what a truncated episode is worth at its last observation
                continue
            if terminated:
                back = torch.zeros(4, 4)
            back = change[t, b] + cfg.pixel_control_gamma * back
            total += 0.5 * float((back - q[t, b, items["action"][t, b]]).square().sum())
    assert float(found.detach()) == pytest.approx(total, rel=1e-4)


def test_value_replay_by_hand() -> None:
    both, cfg = tasks()
    items = sequence(2, 9, 3)
    obs = {k: v for k, v in items.items() if k.startswith("obs")}
    value = both.nets.value(both.nets.features(obs, items["first"])).detach()
    total = 0.0
    for b in range(3):
        back = float(value[-1, b])
        for t in reversed(range(9)):
            if not items["valid"][t, b]:
                back = float(value[t, b])
                continue
            back = float(items["reward"][t, b]) + cfg.gamma * (0.0 if items["terminated"][t, b] else back)
            total += 0.5 * (back - float(value[t, b])) ** 2
    assert float(both.value_replay(items).detach()) == pytest.approx(total, rel=1e-4)


def test_sequences_start_with_an_empty_recurrent_state_and_clear_it_at_episodes() -> None:
    both, _ = tasks()
    items = sequence(3, 6, 2)
    obs = {k: v for k, v in items.items() if k.startswith("obs")}
    whole = both.nets.features(obs, items["first"])
    for b in range(2):
        start = 0
        for t in range(7):
            start = t if items["first"][t, b] else start
            own = {k: v[start : t + 1, b : b + 1] for k, v in obs.items()}
            alone = both.nets.features(own, torch.zeros((t + 1 - start, 1), dtype=torch.bool))
            torch.testing.assert_close(alone[-1, 0], whole[t, b], atol=1e-5, rtol=1e-4)


def test_reward_prediction_by_hand() -> None:
    """Three frames through the torso, side by side in their order; no recurrent core, no last action or reward."""
    both, _ = tasks()
    obs = {k: v[:FRAMES] for k, v in sequence(4, 4, 5).items() if k.startswith("obs")}
    reward = torch.tensor([0.0, 1.0, -0.5, 0.0, 2.0])
    (torso,) = both.nets.encoder.images.values()
    side_by_side = torch.cat([torso(obs["obs"][age]) for age in range(FRAMES)], -1)
    logits = both.nets.reward_prediction(side_by_side)  # type: ignore[misc]
    expected = sum(-F.log_softmax(logits[i], -1)[c] for i, c in enumerate((0, 1, 2, 0, 1)))
    torch.testing.assert_close(both.reward_prediction(obs, reward), expected)


# ------------------------------------------------------------------------------------------- replay
def stream(start: int, steps: int, rewarded: Any = (), first: Any = (), begins: bool = False) -> Tensors:
    """A segment of one environment whose observation is the step's number."""
    t = torch.arange(start, start + steps + 1)
    begin = torch.tensor([int(i) in first for i in t])
    begin[0] |= begins
    ended = torch.tensor([int(i) + 2 in first for i in t[:-1]])  # the row between is not valid
    return {
        "obs": t.view(-1, 1, 1).float(), "first": begin[:, None], "action": t[:-1, None],
        "reward": torch.tensor([[1.0 if int(i) in rewarded else 0.0] for i in t[:-1]]), "terminated": ended[:, None],
        "truncated": torch.zeros((steps, 1), dtype=torch.bool), "state/h": torch.zeros(1, 4),
        "valid": ~torch.tensor([int(i) + 1 in first for i in t[:-1]])[:, None],
    }  # fmt: skip


def test_sequences_are_consecutive_and_uniform() -> None:
    memory = FrameReplay(50, seed=0)
    assert memory.sequences(4, 1) is None
    for start in range(0, 120, 5):
        memory.add(stream(start, 5))
    assert memory.size == 50
    drawn = memory.sequences(4, 4_000)
    assert drawn is not None and drawn["obs"].shape == (5, 4_000, 1) and drawn["action"].shape == (4, 4_000)
    assert "state/h" not in drawn
    starts = drawn["obs"][0, :, 0]
    assert torch.equal(drawn["obs"][..., 0], starts + torch.arange(5.0)[:, None])
    assert torch.equal(drawn["action"].float(), drawn["obs"][:4, :, 0])
    counts = torch.bincount(starts.long(), minlength=120)
    assert not counts[:70].any() and not counts[116:].any(), "the newest 50, of which 46 can begin a sequence"
    assert bool((counts[70:116] > 87 - 5 * 9.4).all()) and bool((counts[70:116] < 87 + 5 * 9.4).all())


def test_half_of_the_predicted_rewards_are_rewards() -> None:
    """a3c-unreal.md 4.8: a replay with 1 % of rewards; 4,000 draws lie within 5 deviations of one half."""
    memory = FrameReplay(2_000, seed=0)
    rewarded = range(50, 2_000, 100)
    for start in range(0, 2_000, 20):
        memory.add(stream(start, 20, rewarded))
    drawn = memory.rewarded(4_000)
    assert drawn is not None and drawn.obs["obs"].shape == (3, 4_000, 1)
    share = float((drawn.reward != 0).float().mean())
    assert abs(share - 0.5) < 5 * np.sqrt(0.25 / 4_000)
    steps = drawn.obs["obs"][-1, :, 0]  # the last frame is that at which the rewarded action was taken
    assert torch.equal(drawn.reward, torch.tensor([float(int(t) in rewarded) for t in steps]))
    assert torch.equal(drawn.obs["obs"][..., 0], steps + torch.arange(-2.0, 1.0)[:, None])
    assert len(set(steps[drawn.reward != 0].tolist())) == len(rewarded), "each of the kind"


def test_frames_before_a_reward_are_of_one_episode() -> None:
    memory = FrameReplay(60, seed=0)
    for start in range(0, 60, 10):
        memory.add(stream(start, 10, rewarded=range(60), first=(0, 7, 31, 32, 50)))
    drawn = memory.rewarded(3_000)
    assert drawn is not None
    last = {int(t) for t in drawn.obs["obs"][-1, :, 0]}
    not_valid = {6, 30, 31, 49}  # the row before an episode's first observation
    near = {t + age for t in (0, 7, 31, 32, 50) for age in (0, 1)}
    assert last == set(range(60)) - not_valid - near
    few = FrameReplay(60, seed=0)
    assert few.rewarded(1) is None
    few.add(stream(0, 4, first=(0, 2, 4)))
    assert few.rewarded(1) is None


def test_nothing_passes_where_environments_began_anew() -> None:
    """As when a run is resumed: the last step before it counts no more."""
    memory = FrameReplay(40, seed=0)
    memory.add(stream(0, 10))
    memory.add(stream(100, 10, begins=True))
    assert memory.rows["valid"][:20, 0].tolist() == [*[True] * 9, False, *[True] * 10]
    drawn = memory.rewarded(500)
    assert drawn is not None
    assert {int(t) for t in drawn.obs["obs"][-1, :, 0]} == {*range(2, 9), *range(102, 110)}


def test_the_replay_goes_on_where_it_stopped() -> None:
    one, two = FrameReplay(30, seed=0), FrameReplay(30, seed=9)
    for start in range(0, 50, 5):
        one.add(stream(start, 5, rewarded=(22, 40)))
    one.sequences(3, 2)
    state = one.state_dict()
    two.load_state_dict({**state, "rows": {k: v.clone() for k, v in state["rows"].items()}})
    for memory in (one, two):
        memory.add(stream(50, 5))
    for name in ("sequences", "rewarded"):
        a, b = (getattr(m, name)(*([3, 4] if name == "sequences" else [4])) for m in (one, two))
        assert a is not None and b is not None
        pairs = [(a[k], b[k]) for k in a] if name == "sequences" else [(a.obs["obs"], b.obs["obs"])]
        assert all(torch.equal(x, y) for x, y in pairs)


def test_the_replay_is_part_of_its_workers_state() -> None:
    workers: list[Any] = []
    run(spy(load("unreal").program(config("unreal", **CATCH)), "worker", workers.append), 8)
    saved = workers[0].state_dict()
    other: list[Any] = []
    run(spy(load("unreal").program(config("unreal", **CATCH)), "worker", other.append), 2, seed=1)
    other[0].load_state_dict(saved)
    mine, theirs = workers[0].learner.memory, other[0].learner.memory
    assert mine.size == theirs.size == 4 * 6 and mine.random.random() == theirs.random.random()
    assert all(torch.equal(mine.rows[k], v) for k, v in theirs.rows.items())


def test_its_bytes_are_counted() -> None:
    cfg = config("unreal", **CATCH)
    spec = trajectories(cfg, unreal.network, {})
    memory = FrameReplay(cfg.replay // cfg.envs, seed=0)
    memory.add({k: torch.from_numpy(np.zeros(f.shape, f.dtype)) for k, f in spec.items()})
    held = sum(v.numel() * v.element_size() for v in memory.rows.values())
    assert frame_replay_nbytes(memory.capacity, spec) == held
    (worker,) = unreal.program(cfg).roles
    assert worker.memory == held + spec_nbytes(spec), "and its segment"


# ---------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    "fields,told",
    [
        (dict(env="CartPole-v1"), "CartPole-v1 has 'obs' .vector.*--pixel-control false"),
        (dict(env="toy:catch", pixel_cell=8), "at least 4 x 4 cells of pixel_cell=8.* 20 x 20 pixels"),
        (dict(env="toy:catch", replay=12), "must hold more than a segment"),
        (dict(env="toy:catch", optimiser="adam"), "unreal shares the statistics"),
        (dict(env="toy:catch", device="cuda:1"), "device is cuda:1, but every process of unreal computes on the CPU"),
    ],
)
def test_what_cannot_work_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        unreal.program(config("unreal", **fields))
