import pytest
import torch
from present import present

from shoal.nets import PopArt
from shoal.nets.actor_critic import ActorCritic
from shoal.systems import recurrent_ppo

ALL = torch.ones(20, 4, dtype=torch.bool)


def returns(seed, size, mean):
    return torch.randn(20, 4, generator=torch.Generator().manual_seed(seed)) * size + mean


@pytest.fixture
def head():
    torch.manual_seed(0)
    return torch.nn.Linear(8, 1)


def test_update_changes_no_value(head):
    scale, features = PopArt(), torch.randn(50, 8, generator=torch.Generator().manual_seed(1))
    before = scale.value(head(features)).detach()
    for k in range(5):
        scale.update(head, returns(k, 300.0, -500.0 * k), ALL)
    after = scale.value(head(features)).detach()
    bound = 50 * 5 * torch.finfo(torch.float32).eps * float(scale.spread() + scale.mean.abs())
    assert float((after - before).abs().max()) < bound


def test_moments_are_plain_means_until_the_step_is_reached(head):
    scale, batches = PopArt(step=0.01), [returns(k, 2.0, 7.0) for k in range(10)]
    for batch in batches:
        scale.update(head, batch, ALL)
    joined = torch.stack(batches).double()
    assert float(scale.mean) == pytest.approx(float(joined.mean()))
    assert float(scale.spread()) == pytest.approx(float(joined.std(correction=0)))


def test_a_late_update_moves_the_mean_by_the_step(head):
    scale = PopArt(step=0.5)
    for value in (0.0, 0.0, 8.0):
        scale.update(head, torch.full((20, 4), value), ALL)
    assert float(scale.mean) == pytest.approx(4.0)


def test_rows_that_do_not_count_and_returns_that_are_not_finite_change_nothing(head):
    scale, mask = PopArt(), ALL.clone()
    mask[0] = False
    rows = returns(0, 1.0, 0.0)
    scale.update(head, rows, mask)
    mean = float(scale.mean)
    assert mean == pytest.approx(float(rows[1:].double().mean()))
    scale.update(head, torch.full((20, 4), torch.inf), ALL)
    assert float(scale.mean) == mean


def test_spread_with_is_the_spread_after_the_update(head):
    scale, rows = PopArt(), returns(3, 40.0, 9.0)
    told = float(scale.spread_with(rows, ALL))
    assert told != float(scale.spread())
    scale.update(head, rows, ALL)
    assert told == float(scale.spread())


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_an_actor_critic_says_values_in_the_unit_of_rewards_wherever_it_is_asked(core):
    env = recurrent_ppo.Config(env="CartPole-v1").env_spec()
    torch.manual_seed(0)
    nets = ActorCritic(env, core=core, pop_art=True, device="cpu", precision="fp32")
    scale = present(nets.pop_art)
    scale.update(nets.value.linear, returns(0, 50.0, 300.0), ALL)
    nets.value.linear.weight.data.normal_()
    obs, first = torch.randn(3, 2, 4), torch.zeros(3, 2, dtype=torch.bool)
    state = nets.initial_state(2)
    items = {"obs": obs, "first": first, **{f"state/{k}": v for k, v in state.items()}}
    with torch.no_grad():
        said = nets._unroll({"obs": obs}, first, state)[1]
        unrolled = nets.unroll({"obs": obs}, first, state)[1]
        stepped = nets.step({"obs": obs[0]}, first[0], state)[1]
    learned = nets.outputs(items).values.value.detach()
    assert torch.allclose(unrolled, said * scale.spread().float() + scale.mean.float())
    assert torch.allclose(unrolled, learned, rtol=1e-4) and torch.allclose(stepped, unrolled[0], rtol=1e-4)
    assert nets.small_batch() is None


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_values_begin_at_0_so_that_no_return_is_made_up(core):
    """What a random head says would be bootstrapped from, and a rare reward would be small beside its spread."""
    env = recurrent_ppo.Config(env="CartPole-v1").env_spec()
    fields = dict(core=core, device="cpu", precision="fp32")
    obs, first, policies = torch.randn(3, 2, 4), torch.zeros(3, 2, dtype=torch.bool), []
    for pop_art in (True, False):
        torch.manual_seed(0)
        nets = ActorCritic(env, pop_art=pop_art, **fields)
        with torch.no_grad():
            policy, value = nets.unroll({"obs": obs}, first, nets.initial_state(2))
        assert bool((value == 0.0).all()) == pop_art
        policies.append(policy)
    torch.testing.assert_close(*policies)
