"""R2D3: a second, read-only, separately prioritised replay of demonstrations; without it, R2D2 bit for bit."""

from __future__ import annotations

import copy
from typing import Any, cast

import numpy as np
import pytest
import torch
from helpers import config, demonstrations, record_batches, run, spy
from noted import noted
from present import present
from scipy import stats

from shoal.api import Batch, ShoalError, UsageError
from shoal.demonstrations.episodes import Episode
from shoal.ops import importance_weights
from shoal.replay.sequence_table import SequenceTable
from shoal.systems import r2d2, r2d3
from shoal.systems.r2d3 import Demonstrated, mix

ENV = "CartPole-v1"


def small(**fields: Any) -> r2d3.Config:
    return config("r2d3", **{"env": ENV, **fields})


def filled(cfg: r2d3.Config, seed: int = 0) -> SequenceTable:
    found = r2d3.demonstrations(cfg)
    assert found is not None
    table = r2d3.filled(cfg, found, seed)
    assert isinstance(table, SequenceTable)
    return table


def test_without_demonstrations_it_is_r2d2_bit_for_bit() -> None:
    fields = dict(env=ENV, start_state="zero", staleness=False, target_period=400)
    theirs = run(r2d2.program(config("r2d2", **fields)), 40)
    for ratio, source in ((0.0, ""), (1e-12, "helpers:demonstrations")):  # none wanted; wanted, but never drawn
        ours = run(r2d3.program(small(demo_ratio=ratio, demonstrations=source)), 40)
        assert ours.steps == theirs.steps > 100
        for name, value in theirs.params["params"].items():
            assert torch.equal(ours.params["params"][name], value), name


@pytest.mark.parametrize("fields,told", [
    ({}, "no demonstrations are given, so this is r2d2"),
    ({"demonstrations": "some/set-v0", "demo_ratio": 0.0}, "demo_ratio is 0: nothing is drawn from some/set-v0"),
    ({"demonstrations": "some/set-v0"}, None),
])  # fmt: skip
def test_a_user_reads_when_no_demonstrations_are_shown(fields: dict[str, Any], told: str | None) -> None:
    remarks = r2d3.Config(env="CartPole-v1", **fields).remarks()
    assert [one for one in remarks if "r2d2" in one] == [one for one in remarks if told and told in one]
    assert bool(told) == any("r2d2" in one for one in remarks)


def test_with_demonstrations_it_is_not() -> None:
    one, other = (run(r2d3.program(small(demo_ratio=ratio)), 10).params["params"] for ratio in (0.0, 0.5))
    assert not all(torch.equal(v, other[k]) for k, v in one.items())


@pytest.mark.parametrize("ratio", [0.03, 0.25, 1.0])
def test_each_element_is_a_demonstration_with_probability_rho(ratio: float) -> None:
    """Section 2: u ~ U(0, 1) for each element of a batch; a binomial test over whole runs of batches, and independent
    of the element's place."""
    cfg = small(demo_ratio=ratio, batch=16)
    program = r2d3.program(cfg)
    seen: list[Batch] = []

    def attach(role: Any) -> None:
        update = role.learner.learner.update
        role.learner.learner.update = lambda batch: noted(seen, batch, update(batch))

    run(spy(program, "learner", attach), 60)
    shown = np.array([(batch.items["obs"][cfg.burn_in, :, 1] > 500).numpy() for batch in seen])
    assert shown.shape == (60, 16)
    assert stats.binomtest(int(shown.sum()), shown.size, ratio).pvalue > 1e-3
    if ratio < 1:
        assert shown.any(0).sum() > 4, "every place can hold one"


def test_the_replay_of_demonstrations_holds_every_step_once_and_their_rewards_as_in_training() -> None:
    cfg = small(reward_clip="sign", reward_scale=0.5, last_action_reward=True)
    table = filled(cfg)
    batch = table.sample(400)
    learned = slice(cfg.burn_in, None)
    valid = batch.items["valid"][learned]
    obs, reward = batch.items["obs"][learned][valid].numpy(), batch.items["reward"][learned][valid].numpy()
    steps = {(int(o[1]) // 1000 - 1, int(o[0]) - int(o[1])) for o in obs}
    assert steps == {(e, t) for e, n in enumerate((30, 9, 21)) for t in range(n)}
    assert np.allclose(reward, 0.5 * np.sign((obs[:, 0] - obs[:, 1]) % 3))
    last, told = batch.items["obs/last_action"][learned][valid], batch.items["obs/last_reward"][learned][valid]
    at = torch.from_numpy(obs[:, 0] - obs[:, 1]).long()
    assert torch.equal(last[:, 0], torch.where(at > 0, (at - 1) % 2, 0))
    assert torch.allclose(told[:, 0], torch.where(at > 0, 0.5 * torch.sign((at - 1) % 3), 0.0))
    ends = batch.items["terminated"].any(0)
    truncated = batch.items["obs"][cfg.burn_in, :, 1] == 2000
    assert ends.any() and not ends[truncated].any()
    assert table.check_valid() == (True, "") and table.evicted == 0


def test_priorities_and_importance_weights_are_each_replays_own() -> None:
    cfg = small(demo_ratio=0.5, batch=32)
    program, kept = r2d3.program(cfg), {}

    def attach(role: Any) -> None:
        kept["table"], given = role.learner.table, role.learner.learner.update
        update = role.learner.update

        def inner(batch: Batch) -> Any:
            result = given(batch)
            kept["told"] = result.priorities.clone()
            return result

        def outer(batch: Batch) -> Any:
            before = kept["table"]._i.priority.copy()
            result = update(batch)
            kept["changed"] = int((kept["table"]._i.priority != before).sum())
            kept["left"] = result.priorities
            return result

        role.learner.learner.update, role.learner.update = inner, outer

    run(spy(program, "learner", attach), 30)
    shown = torch.isnan(kept["left"])
    assert 0 < shown.sum() < 32 and torch.equal(kept["left"][~shown], kept["told"][~shown]) and kept["changed"] > 0
    priorities = kept["table"]._i.priority[kept["table"]._i.key >= 0]
    assert len(np.unique(priorities)) > 3, "demonstrations are prioritised by what is learned of them"

    first = Batch({"x": torch.zeros(2, 4)}, torch.arange(4), torch.tensor([0.1, 0.2, 0.3, 0.05]), 50)
    second = Batch({"x": torch.ones(2, 4)}, torch.arange(4), torch.tensor([0.5, 0.25, 0.125, 0.01]), 7)
    chosen = torch.tensor([True, False, True, False])
    mixed = mix(first, second, chosen)
    assert mixed.items["x"][0].tolist() == [1, 0, 1, 0]
    n_p = torch.tensor([7 * 0.5, 50 * 0.2, 7 * 0.125, 50 * 0.05])
    expected = n_p**-0.6 / (n_p**-0.6).max()
    assert mixed.probs is not None
    torch.testing.assert_close(importance_weights(mixed.probs, 50, 0.6), expected)


def test_a_restored_learner_goes_on_identically_and_refuses_other_demonstrations() -> None:
    cfg = small(demo_ratio=0.5)
    seen = record_batches(r2d3.program(cfg))
    program = r2d3.program(small(demo_ratio=0.0))
    seen = record_batches(program)
    run(program, 8)

    class Fake:
        step = 0

        def __init__(self) -> None:
            self.batches: list[Batch] = []

        def update(self, batch: Batch) -> Any:
            self.batches.append(batch)
            from shoal.api import Update

            return Update({}, torch.linspace(0.1, 2.0, len(batch.keys)))  # type: ignore[arg-type]

        def params(self) -> Any:
            return {}

        def state_dict(self) -> Any:
            return {}

        def load_state_dict(self, state: Any) -> None: ...

    one, other = (Demonstrated(Fake(), filled(cfg, seed), 0.5, seed) for seed in (0, 1))
    for batch, _ in seen[:4]:
        one.update(batch)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for batch, _ in seen[4:]:
        one.update(batch), other.update(batch)
        a, b = cast(Fake, one.learner).batches[-1], cast(Fake, other.learner).batches[-1]
        assert all(torch.equal(v, b.items[k]) for k, v in a.items.items())
        assert torch.equal(present(a.probs), present(b.probs))
    state = copy.deepcopy(one.state_dict())
    stranger = Demonstrated(Fake(), filled(small(reward_clip="none", torso="mlp")), 0.5, 0)
    stranger.table._data[0] += 1  # type: ignore[attr-defined]
    with pytest.raises(ShoalError, match="not those that the checkpoint was made with"):
        stranger.load_state_dict(state)


def wrong_shape() -> list[Any]:
    (obs, *rest), *others = demonstrations()
    return [(obs[:-1], *rest), *others]


def nothing() -> list[Any]:
    return []


def no_list() -> Any:
    return 5


def no_episodes() -> Any:
    return [(1, 2)]


def failing() -> Any:
    raise ValueError("no such file")


def like(episode: Any, **changes: Any) -> list[Any]:
    return [Episode(*episode)._replace(**changes)]


def other_observations() -> list[Any]:
    return like(demonstrations()[0], observations=np.zeros((31, 5), np.float32))


def other_actions() -> list[Any]:
    return like(demonstrations()[0], actions=np.full(30, 2))


def no_numbers() -> list[Any]:
    return like(demonstrations()[0], observations=np.full((31, 4), np.nan, np.float32))


@pytest.mark.parametrize(
    "fields,sentence",
    [
        (dict(start_state="stored"), "needs start_state zero and no staleness"),
        (dict(demonstrations="helpers:nobody"), "'helpers:nobody' cannot be imported"),
        (dict(demonstrations=":"), "cannot be imported"),
        (dict(demonstrations=f"{__name__}:nothing"), "hold no episode"),
        (dict(demonstrations=f"{__name__}:no_list"), "should take no arguments and return a list of"),
        (dict(demonstrations=f"{__name__}:no_episodes"), "should take no arguments and return a list of"),
        (dict(demonstrations=f"{__name__}:failing"), "should take no arguments .*: ValueError: no such file .*line"),
        (dict(demonstrations=f"{__name__}:like"), "should take no arguments and return a list of"),
        (
            dict(demonstrations=f"{__name__}:other_observations"),
            r"'obs' of shape \(5,\), but that of CartPole-v1 is \(4,\)",
        ),
        (dict(demonstrations=f"{__name__}:other_actions"), r"actions that CartPole-v1 does not take: .* Discrete\(2\)"),
        (dict(demonstrations=f"{__name__}:no_numbers"), "observations that are not finite"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        r2d3.program(small(**fields))


def test_an_episode_without_its_last_observation_is_refused() -> None:
    with pytest.raises(UsageError, match="an episode of 30 steps needs 31 observations, found 30"):
        filled(small(demonstrations=f"{__name__}:wrong_shape"))
