"""Action masks: no system ever takes an action that is not allowed, when it acts, explores, evaluates or is exported,
and none learns from the value of one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from helpers import config, learning_role, record_batches, run, spy
from modules import module_of

from shoal import fast
from shoal.api import MASK, Action, Batch, EnvironmentFailed, EnvSpec, Observation, Tensors, UsageError, observations
from shoal.envs import EnvOptions, make, spec
from shoal.learning.differentiate import differentiate
from shoal.nets.distributions import sample_categorical
from shoal.nets.q_network import QNetwork, ReturnNetwork
from shoal.ops import draw_allowed, forbid
from shoal.policy import Policy
from shoal.policy.export import export, policy_module
from shoal.systems import SYSTEMS, dqn, load
from shoal.systems.dqn import QAgent, QLearning
from shoal.systems.rainbow.returns import Quantiles
from shoal.systems.recurrent_ppo import discrete_ppo_loss

ENVS = Path(__file__).parents[1] / "envs"
sys.path.insert(0, str(ENVS))
LEGAL, BOTH = f"{ENVS / 'legal_env.py'}:Legal", f"{ENVS / 'legal_env.py'}:Both"
CONTINUOUS = {"apex-dpg", "d4pg", "qt-opt"}
POLICIES = ("impala", "recurrent-ppo", "dd-ppo", "a3c", "es")
ENV = EnvSpec(
    "test", {"obs": Observation((4,), "float32"), MASK: Observation((3,), "bool", "mask")}, Action("discrete", (3,))
)


def masks(rows: int, actions: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    out = rng.random((rows, actions)) < 0.5
    out[np.arange(rows), rng.integers(actions, size=rows)] = True
    return torch.from_numpy(out)


# -------------------------------------------------------------------------------------------- ops
def test_forbidden_values_are_never_the_largest_and_nothing_else_changes() -> None:
    values, allowed = torch.randn(50, 5, requires_grad=True), masks(50, 5)
    out = forbid(values, allowed)
    for row, (given, mask) in enumerate(zip(values.tolist(), allowed.tolist(), strict=True)):
        assert out[row].tolist() == [v if ok else -np.inf for v, ok in zip(given, mask, strict=True)]
    assert forbid(values, None) is values
    probs = out.softmax(-1)
    assert bool((probs[~allowed] == 0).all()) and torch.allclose(probs.sum(-1), torch.ones(50))
    (gradient,) = torch.autograd.grad((probs * torch.randn(50, 5)).sum(), values)
    assert bool((gradient[~allowed] == 0).all()) and bool(gradient.isfinite().all())


def test_a_draw_is_uniform_over_what_is_allowed() -> None:
    allowed = np.array([[True, False, True, True], [False, False, False, True]])
    drawn = draw_allowed(np.repeat(allowed, 3_000, 0), np.random.default_rng(0)).reshape(2, -1)
    assert np.unique(drawn[1]).tolist() == [3]
    assert np.bincount(drawn[0], minlength=4).tolist() == pytest.approx([1_000, 0, 1_000, 1_000], abs=120)


def test_a_single_allowed_action_is_sampled_whatever_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 0, which a generator gives once in 2**24 draws, the logarithm is infinite."""
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.zeros(shape))
    for actions in (2, 3, 6):
        logits = forbid(torch.zeros(actions, actions), torch.eye(actions, dtype=torch.bool))
        assert sample_categorical(logits).tolist() == list(range(actions))


@pytest.mark.parametrize("compiled", [True, False])
def test_the_loss_of_ppo_is_that_of_a_policy_without_the_forbidden_actions(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast, "ENABLED", compiled)
    torch.manual_seed(0)
    allowed = torch.tensor([True, False, True, True, False])
    outputs = torch.randn(8, 6)
    rest = [torch.randn(8) for _ in range(4)] + [torch.full((8,), 1 / 8)]
    rule: dict[str, Any] = dict(clip=0.2, value_cost=0.5, entropy_cost=0.3)
    action = torch.tensor([0, 2, 3, 0, 2, 3, 0, 2])
    kept = torch.cat((allowed, torch.ones(1, dtype=torch.bool)))
    few = outputs[:, kept].clone().requires_grad_()
    all_ = outputs.clone()
    all_[:, :-1] = forbid(all_[:, :-1], allowed)
    all_.requires_grad_()
    wanted, told = discrete_ppo_loss(few, (allowed.cumsum(0) - 1)[action], *rest, **rule)
    found, also = discrete_ppo_loss(all_, action, *rest, **rule)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(also, told)
    gradient, expected = (torch.autograd.grad(loss, x)[0] for loss, x in ((found, all_), (wanted, few)))
    torch.testing.assert_close(gradient[:, kept], expected)
    assert bool((gradient[:, ~kept] == 0).all())


# -------------------------------------------------------------------------------------- every system
CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    (name, "dict", "discrete", dict(pixel_control=False) if name == "unreal" else {})  # there is nothing to see
    for name in SYSTEMS
    if name not in CONTINUOUS
]
CASES += [(name, "info", "multi", {}) for name in POLICIES]
CASES += [
    ("dqn", "info", "discrete", dict(dueling=True, prioritised=True, n_step=3)),
    ("rainbow", "info", "discrete", dict(returns="quantile", noisy=False, double=False)),
    ("r2d2", "info", "discrete", dict(last_action_reward=True, staleness=True)),
    ("impala", "info", "discrete", dict(core="lstm", core_size=8, replay=16)),
    ("recurrent-ppo", "dict", "multi", dict(core="gru", core_size=8, separate_critic=False)),
]


@pytest.mark.parametrize("system, where, action, fields", CASES)
def test_no_action_that_is_not_allowed_is_ever_taken(system: str, where: str, action: str, fields: Any) -> None:
    """The environment raises at one: while training, and in greedy and sampled evaluations."""
    more = {"demonstrations": ""} if system == "r2d3" else {}
    cfg = config(system, env=LEGAL, env_kwargs={"where": where, "action": action}, **more, **fields)
    program = load(system).program(cfg)
    before: dict[str, torch.Tensor] = {}

    def keep(role: Any) -> None:
        if role.ctx.index == 0:
            before.update({k: v.clone() for k, v in role.learner.params().items()})

    spy(program, learning_role(system), keep)
    after = run(program, 3).params["params"]
    assert all(bool(torch.isfinite(v).all()) for v in after.values())
    assert any(not torch.equal(before[k], v) for k, v in after.items())
    policy = Policy(load(system), cfg, after)
    for greedy in (True, False):
        assert len(policy.evaluate(4, seed=int(greedy), greedy=greedy)) == 4


def test_masks_travel_with_their_observations() -> None:
    """What a learner gets allows every action that was taken."""
    for system, names in (("impala", ("",)), ("dqn", ("", "next/"))):
        cfg = config(system, env=LEGAL)
        program = load(system).program(cfg)
        seen = record_batches(program)
        run(program, 3)
        for batch, _ in seen:
            action = batch.items["action"]
            allowed = batch.items[MASK][: len(action)].gather(-1, action[..., None])[..., 0]
            assert bool((allowed | ~batch.items.get("valid", torch.ones_like(allowed))).all())
            assert all(bool(batch.items[name + MASK].any(-1).all()) for name in names), "the end of a game allows all"


# ----------------------------------------------------------------------------------------- targets
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("kind", ["plain", "dueling", "quantile"])
def test_targets_are_those_of_the_oracle(double: bool, kind: str) -> None:
    """One row after the other, over the allowed actions alone."""
    torch.manual_seed(3)
    rows, gamma = 32, 0.9
    nets: Any = QNetwork(ENV, hidden=(8,), dueling=kind == "dueling", streams=8)
    if kind == "quantile":
        nets = ReturnNetwork(ENV, Quantiles(1, 0.0), hidden=(8,))
    items = {
        "obs": torch.randn(rows, 4), MASK: masks(rows, 3), "next/obs": torch.randn(rows, 4),
        f"next/{MASK}": masks(rows, 3, 1), "reward": torch.randn(rows), "discount": torch.full((rows,), gamma),
    }  # fmt: skip
    items["action"] = torch.from_numpy(draw_allowed(items[MASK].numpy(), np.random.default_rng(0)))
    cfg: Any = dqn.Config(double=double, td_clip=None, prioritised=True)
    if kind == "quantile":
        cfg = module_of("rainbow").Config(double=double, returns="quantile", atoms=1, kappa=0.0, noisy=False)
    algorithm = (module_of("rainbow").DistributionalQLearning if kind == "quantile" else QLearning)(cfg, nets)
    for p in algorithm.target.parameters():
        p.add_(0.3 * torch.randn_like(p))
    with torch.no_grad():
        bare = {"obs": items["next/obs"]}
        online, target = nets(bare).tolist(), algorithm.target(bare).tolist()
        now = nets({"obs": items["obs"]}).tolist()
    errors, wrong = [], 0
    for i in range(rows):
        allowed = [a for a in range(3) if items[f"next/{MASK}"][i, a]]
        chosen = max(allowed, key=lambda a: (online if double else target)[i][a])
        wrong += chosen != max(range(3), key=lambda a: (online if double else target)[i][a])
        errors.append(abs(float(items["reward"][i]) + gamma * target[i][chosen] - now[i][int(items["action"][i])]))
    assert wrong > 3, "else masks would not matter"
    _, _, update = differentiate(algorithm, algorithm.prepare(Batch(items)))
    assert update.priorities is not None
    scale = 0.5 if kind == "quantile" else 1.0  # of one quantile, the median
    assert update.priorities.tolist() == pytest.approx([scale * e for e in errors], rel=1e-4, abs=1e-5)
    assert all(bool(p.grad.isfinite().all()) for p in nets.parameters())


def test_targets_of_sequences_are_those_of_the_oracle() -> None:
    """One-step targets without rescaling, row by row."""
    cfg = config("r2d2", env=LEGAL, n_step=1, rescale=None, priority_mix=1.0, burn_in=2, staleness=False, core="none")
    program = load("r2d2").program(cfg)
    seen = record_batches(program)
    run(program, 2)
    batch, params = seen[0]
    nets = module_of("r2d2").network(cfg)
    nets.load_state_dict(params)
    algorithm = module_of("r2d2").RecurrentQLearning(cfg, nets, 0.4)
    _, _, update = differentiate(algorithm, algorithm.prepare(batch))
    items = {k: v[cfg.burn_in :] for k, v in batch.items.items()}
    with torch.no_grad():
        bare = nets({k: v for k, v in batch.items.items() if k != MASK})
    largest = np.zeros(bare.shape[1])
    for t in range(len(bare) - 1):
        for b in range(bare.shape[1]):
            if items["valid"][t, b]:
                allowed = [float(bare[t + 1, b, a]) for a in range(4) if items[MASK][t + 1, b, a]]
                future = 0.0 if items["terminated"][t, b] else cfg.gamma * max(allowed)
                delta = float(items["reward"][t, b]) + future - float(bare[t, b, items["action"][t, b]])
                largest[b] = max(largest[b], abs(delta))
    assert update.priorities is not None
    assert update.priorities.tolist() == pytest.approx(largest.tolist(), rel=1e-4, abs=1e-5)


def test_first_priorities_and_exploration_know_only_what_is_allowed() -> None:
    torch.manual_seed(0)
    nets = QNetwork(ENV, hidden=(8,))
    obs, allowed = torch.randn(400, 4), masks(400, 3)
    values = nets({"obs": obs}).detach().masked_fill(~allowed, -np.inf)
    for epsilon in (0.0, 1.0):
        agent = QAgent(nets, lambda steps, epsilon=epsilon: epsilon, 0, with_values=True)  # type: ignore[misc]
        act = agent.act({"obs": obs.numpy(), MASK: allowed.numpy()}, np.zeros(400, bool), {})
        rows = np.arange(400)
        assert allowed.numpy()[rows, act.action].all()
        assert np.array_equal(act.extras["q_max"], values.max(-1).values.numpy())
        assert np.array_equal(act.extras["q_taken"], values.numpy()[rows, act.action])
        assert (epsilon == 0) == np.array_equal(act.extras["q_taken"], act.extras["q_max"])


@pytest.mark.parametrize("ignored", [False, True])
def test_what_cannot_be_done_is_worth_nothing(ignored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody ever learns what action 2 is worth, as it is never allowed: it keeps the 10 it began with. The true value
    of the first place is 0; a target that ignores the mask makes it 0.9 * 10."""
    if ignored:

        def unmasked(items: Tensors, prefix: str = "") -> Tensors:
            found = observations(items, prefix)
            return {"obs/place": found["obs/place"]} if prefix == "next/" else found

        monkeypatch.setattr(dqn, "observations", unmasked)
    cfg = config(
        "dqn", env=f"{ENVS / 'legal_env.py'}:Trap", gamma=0.9, n_step=1, learning_rate=1e-2, target_period=10,
        samples_per_insert=16.0, min_replay=32, double=False, td_clip=None, epsilon_steps=0, epsilon_end=0.5,
    )  # fmt: skip
    program = dqn.program(cfg)

    def hope(role: Any) -> None:
        with torch.no_grad():
            role.learner.algorithm.nets.head.linear.bias[2] = 10.0
        role.learner.algorithm.after_step(0)

    spy(program, "learner", hope)
    nets = dqn.network(cfg)
    nets.load_state_dict(run(program, 250).params["params"])
    place = torch.tensor([[1.0, 0.0]])
    assert nets({"obs/place": place})[0, :2].tolist() == pytest.approx([9.0 * ignored] * 2, abs=1.5)


# ------------------------------------------------------------------------------------ environments
def test_what_an_environment_offers() -> None:
    leaf = Observation((4,), "bool", "mask")
    for where in ("dict", "info"):
        seen = spec(LEGAL, EnvOptions(env_kwargs={"where": where})).observations
        assert seen[MASK] == leaf and len(seen) == 2
        none = spec(LEGAL, EnvOptions(env_kwargs={"where": where}, action_mask="none")).observations
        assert MASK not in none and (f"{MASK}_" in none) == (where == "dict")
    assert MASK in spec(LEGAL, EnvOptions(env_kwargs={"where": "quiet"}, action_mask="info")).observations
    taxi = max(name for name in gym.registry if name.startswith("Taxi-"))
    assert MASK in spec(taxi, EnvOptions()).observations
    assert MASK not in spec("CartPole-v1", EnvOptions()).observations


@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED"])
def test_masks_belong_to_their_observations_where_a_step_resets(mode: str) -> None:
    """The observation's number is the action that is allowed; also of the true last observation."""
    envs = make(BOTH, 3, EnvOptions(env_kwargs={"mode": mode}))
    obs, finals = envs.reset(0), 0
    for _ in range(7):
        assert np.array_equal(obs[MASK].argmax(1), obs["obs"][:, 0]) and (obs[MASK].sum(1) == 1).all()
        step = envs.step(obs[MASK].argmax(1))
        if step.truncated.any():
            assert step.final_obs is not None
            assert np.array_equal(step.final_obs[MASK], np.eye(4, dtype=bool)[[3, 3, 3]])
            finals += 1
        obs = step.obs
    assert finals == 2


@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED"])
def test_the_last_observation_of_an_episode_may_forbid_everything(mode: str) -> None:
    """Nothing is chosen there: everything is allowed. The first one of the next episode may not."""
    envs: Any = make(BOTH, 3, EnvOptions(env_kwargs={"mode": mode}))
    told = envs.env.told

    def none(at: int) -> Any:
        obs, info = told()
        return obs, {"action_mask": info["action_mask"] * (envs.env.count != at)[:, None]}

    envs.env.told = lambda: none(3)
    envs.reset(0)
    for action in (0, 1):
        envs.step(np.full(3, action))
    step = envs.step(np.full(3, 2))
    assert step.truncated.all() and step.final_obs[MASK].all() and step.obs[MASK].argmax(1).tolist() == [0, 0, 0]
    assert (step.obs[MASK].sum(1) == 1).all()
    for action in (0, 1):
        envs.step(np.full(3, action))
    envs.env.told = lambda: none(0)
    with pytest.raises(EnvironmentFailed, match="Both' forbids every action"):
        envs.step(np.full(3, 2))


@pytest.mark.parametrize("kwargs, options, words", [
    ({"size": 3}, {}, "has the 'action_mask' MultiBinary(3), but one for Discrete(4) is flat, with 4 truth values"),
    ({"size": 6, "action": "multi"}, {}, "but one for MultiDiscrete([2, 3]) is flat, with 5 truth values"),
])  # fmt: skip
def test_a_mask_of_another_shape_is_refused(kwargs: Any, options: Any, words: str) -> None:
    with pytest.raises(UsageError) as refusal:
        spec(LEGAL, EnvOptions(env_kwargs=kwargs, **options))
    assert words in str(refusal.value) and "\n" not in str(refusal.value) and "Legal" in str(refusal.value)


def test_masks_of_a_continuous_action_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--action-mask info is for Discrete and MultiDiscrete actions; Pendulum-v1"):
        spec("Pendulum-v1", EnvOptions(action_mask="info"))


@pytest.mark.parametrize("where", ["dict", "info"])
def test_a_mask_that_forbids_everything_is_refused_with_the_environments_name(where: str) -> None:
    envs = make(LEGAL, 2, EnvOptions(env_kwargs={"where": where, "stuck": True}))
    obs = envs.step(envs.reset(5)[MASK].argmax(1)).obs
    with pytest.raises(EnvironmentFailed, match=r"Legal' forbids every action \(index 0, action \d, seed 6\)"):
        envs.step(obs[MASK].argmax(1))


def test_an_info_mask_that_is_missing_wrong_or_unannounced_is_named() -> None:
    with pytest.raises(EnvironmentFailed, match=r"gives an info\['action_mask'\]: --action-mask info keeps to it"):
        make(LEGAL, 2, EnvOptions(env_kwargs={"where": "quiet"})).reset(0)
    make(LEGAL, 2, EnvOptions(env_kwargs={"where": "quiet"}, action_mask="none")).reset(0)
    with pytest.raises(EnvironmentFailed, match=r"CartPole-v1' gave no info\['action_mask'\]"):
        make("CartPole-v1", 2, EnvOptions(action_mask="info", backend="gymnasium")).reset(0)
    for env in (LEGAL, BOTH):
        late: Any = make(env, 2, EnvOptions(env_kwargs={"where": "late"}))
        late.reset(0)
        allowed = [one.unwrapped.mask.argmax() for one in late.env.envs] if env == LEGAL else [0, 0]
        with pytest.raises(EnvironmentFailed, match=r"gives an info\['action_mask'\]"):
            late.step(np.array(allowed))
    for mode in ("SAME_STEP", "DISABLED"):
        with pytest.raises(EnvironmentFailed, match=r"Both' gives an info\['action_mask'\]"):
            make(BOTH, 2, EnvOptions(env_kwargs={"where": "quiet", "mode": mode})).reset(0)
        ignored = make(BOTH, 2, EnvOptions(env_kwargs={"where": "quiet", "mode": mode}, action_mask="none"))
        ignored.reset(0)
        assert MASK not in ignored.step(np.zeros(2, np.int64)).obs
        make(BOTH, 2, EnvOptions(env_kwargs={"where": "quiet", "mode": mode}, action_mask="info")).reset(0)
    from shoal.envs.masks import one

    for wrong in ((np.ones(2), np.ones(2)), np.ones(5), np.array(["a"] * 4)):
        with pytest.raises(EnvironmentFailed, match="instead of a flat array of 4 truth values"):
            one({"action_mask": wrong}, 4, "mine", lambda: "at reset")


# ------------------------------------------------------------------------------------------ policies
def test_a_policy_is_given_masks_with_its_observations(tmp_path: Path) -> None:
    cfg = config("recurrent-ppo", env=LEGAL, env_kwargs={"where": "info"})
    policy = Policy(load("recurrent-ppo"), cfg, module_of("recurrent-ppo").network(cfg).state_dict())
    board = np.zeros(3, np.float32)
    for action in range(4):
        assert policy.act(board, greedy=False, action_mask=np.eye(4, dtype=np.int8)[action]) == action + 1
    with pytest.raises(UsageError, match=r"Legal says in info\['action_mask'\] what is allowed"):
        policy.act(board)
    with pytest.raises(UsageError, match=r"the action mask forbids every action of .*Legal"):
        policy.act(board, action_mask=np.zeros(4))
    with pytest.raises(UsageError, match=r"'action_mask' should have shape \(4,\), found \(3,\)"):
        policy.act(board, action_mask=np.ones(3))
    policy.reset(2)
    assert policy.act(np.zeros((2, 3), np.float32), action_mask=np.eye(4)[[3, 1]]).tolist() == [4, 2]
    in_dict = Policy(load("recurrent-ppo"), replace(cfg, env_kwargs={}), module_of("recurrent-ppo").network(
        replace(cfg, env_kwargs={})).state_dict())  # fmt: skip
    assert in_dict.act({"board": board, "action_mask": np.array([0, 0, 1, 0])}) == 3
    with pytest.raises(UsageError, match="without action masks"):
        Policy(dqn, config("dqn"), dqn.network(config("dqn")).state_dict()).act(np.zeros(4), action_mask=np.ones(2))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("system", ["dqn", "recurrent-ppo"])
def test_an_exported_policy_takes_only_allowed_actions(system: str, tmp_path: Path) -> None:
    cfg = config(system, env=LEGAL)
    policy = Policy(load(system), cfg, module_of(system).network(cfg).state_dict())
    folder = export(policy, "torchscript", tmp_path / "model")
    assert '"path": [\n        "action_mask"' in (folder / "model.json").read_text()
    model = torch.jit.load(folder / "model.pt")
    names, board, allowed = policy_module(policy).inputs(), torch.randn(50, 3), masks(50, 4)
    action, values = model(*({MASK: allowed, "obs/board": board}[name] for name in names))
    assert bool(allowed[torch.arange(50), action - 1].all())
    assert bool((values[~allowed] == -torch.inf).all()) and bool(values[allowed].isfinite().all())
