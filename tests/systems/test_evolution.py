"""Evolution strategies: what travels, what a result depends on, and what many perturbed policies at once compute."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode
from helpers import config, run, spy

from shoal.api import Batch, Context, UsageError, WiringError, spec_nbytes
from shoal.envs import EnvOptions, make, spec
from shoal.local.runtime import LocalRuntime
from shoal.metering.recorder import Recorder
from shoal.nets.evolution_policy import EvolutionPolicy
from shoal.nets.normaliser import RunningNorm
from shoal.nets.virtual_batch_norm import VirtualBatchNorm
from shoal.program import draw
from shoal.roles.evolution import EvolutionMaster, EvolutionWorker
from shoal.roles.random_observations import random_observations
from shoal.runtime.launch import Launch, Stop
from shoal.systems import es
from shoal.systems.es.evolution import EvolutionAgent
from shoal.systems.es.perturbed import ModulePopulation, PerceptronPopulation, population

TABLE = np.random.default_rng(0).standard_normal(2**16).astype(np.float32)


# ---------------------------------------------------------------------------------- what travels
def test_a_message_is_as_long_whatever_the_network() -> None:
    """24 bytes a pair: index, two returns, two lengths."""
    sizes, told = [], []
    for hidden in ((8,), (512, 512)):
        cfg = config("es", env="CartPole-v1", hidden=hidden, normalise_obs=False)
        program = es.program(cfg)
        results = program.channels["results"]
        sizes.append(spec_nbytes(results.spec))
        assert f"{sizes[-1]} B an item" in draw.text(program)
        told.append(program.memory()["params"])
    assert sizes == [8 + 24 * 4] * 2
    assert told[1] > 100 * told[0]


def test_the_table_is_counted_once_a_machine() -> None:
    one, many = (es.program(config("es", env="CartPole-v1", actors=n)).memory()["noise"] for n in (1, 2))
    assert one == many == 4 * 2**20


def test_an_atari_network_does_not_change_a_message() -> None:
    program = es.program(es.Config(env="ALE/Pong-v5", envs=4, pairs=8))
    assert spec_nbytes(program.channels["results"].spec) == 8 + 24 * 4  # images have no running statistics


# ------------------------------------------------------------------ what a result depends on
def test_any_number_of_workers_gives_the_same_parameters() -> None:
    found = []
    for actors in (1, 2, 3):
        cfg = config("es", env="CartPole-v1", actors=actors, pairs=16, evaluate_every=2)
        found.append(run(es.program(cfg), 5, seed=3).params["params"])
    for params in found[1:]:
        assert params.keys() == found[0].keys()
        for name, tensor in params.items():
            assert torch.equal(tensor, found[0][name]), name


def test_a_killed_worker_changes_nothing(tmp_path: Path) -> None:
    """Its successor plays the task again; what was there already is discarded. The local runtime ends with the
    parameters of a serial run, bit for bit."""
    cfg = config("es", env="CartPole-v1", actors=2, pairs=16, evaluate_every=0)
    wanted = run(es.program(cfg), 6, seed=5).params["params"]
    told = tmp_path / "killed"

    class Dies(EvolutionWorker):
        def _play_block(self, block: int, out: Any) -> None:
            if self.version == 3 and block == 2 and not told.exists():
                told.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            super()._play_block(block, out)

    def turn(role: Any) -> None:
        role.__class__ = Dies

    program = spy(es.program(cfg), "worker", turn)
    report = LocalRuntime().launch(program, Launch(seed=5, stop=Stop(updates=6)))
    assert told.exists() and report.restarts == 1 and report.updates == 6
    for name, tensor in wanted.items():
        assert torch.equal(report.params["params"][name], tensor), name


def test_results_of_an_old_task_and_duplicates_are_discarded() -> None:
    learned: list[Batch] = []

    class Queue:
        def __init__(self, *given: tuple[int, int]) -> None:
            self.given = list(given)

        def get(self) -> Batch:
            version, block = self.given.pop(0)
            return Batch({"block": torch.tensor([block]), "index": torch.tensor([10 * block])}, versions=(version,))

    class Learner:
        def update(self, batch: Batch) -> Any:
            learned.append(batch)
            return type("Update", (), {"metrics": {}})

        def params(self) -> Any:
            return {}

    class Params:
        version = 0

        def publish(self, params: Any) -> int:
            self.version += 1
            return self.version

    metrics = Recorder()
    context = Context("learner", 0, 1, 0, 0, metrics)
    order = [(1, 1), (0, 0), (1, 1), (1, 0), (1, 0), (2, 0), (2, 1)]
    master = EvolutionMaster(context, Learner(), 2, Queue(*order), Params())  # type: ignore[arg-type]
    master.start()
    for _ in order:
        master.step()
    assert [batch.items["index"].tolist() for batch in learned] == [[0, 10], [0, 10]]  # in the order of the blocks
    assert master.version == 3 and metrics.totals["updates"] == 2
    discarded, updates = metrics.drain().records["discarded_results"]
    assert (discarded, updates) == (3.0, 2) and discarded + 2 * 2 == len(order)


def test_the_cap_follows_the_mean_length() -> None:
    learner: list[Any] = []
    cfg = config("es", env="CartPole-v1", cap=1.5, cap_start=12, pairs=16, learning_rate=1e-6)
    program = spy(es.program(cfg), "learner", lambda role: learner.append(role.learner))
    lengths: list[torch.Tensor] = []

    def keep(role: Any) -> None:
        update = role.learner.update

        def kept(batch: Batch) -> Any:
            lengths.append(batch.items["lengths"].clone())
            return update(batch)

        role.learner.update = kept

    run(spy(program, "learner", keep), 4)
    assert int(lengths[0].max()) == 12
    caps = [12] + [max(12, int(np.ceil(1.5 * float(n.double().mean())))) for n in lengths]
    assert [int(n.max()) for n in lengths] == caps[:-1] and caps[1] > 12
    assert int(learner[0].params()["task/cap"]) == caps[-1]


class Strides(gym.Env[Any, Any]):
    """The longer the strides (actions), the sooner an episode ends; its return is how far they lead."""

    observation_space, action_space = gs.Box(-9.0, 9.0, (2,), np.float32), gs.Box(-2.0, 2.0, (1,), np.float32)
    far = 0.0
    steps = 0

    def _obs(self) -> np.ndarray:
        return np.array([self.far, 0.1 * self.steps], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.far, self.steps = 0.0, 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.far, self.steps = self.far + float(action[0]), self.steps + 1
        return self._obs(), float(action[0]), abs(self.far) > 2.0, self.steps == 25, {}


def strides_next_step(num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    return gym.vector.SyncVectorEnv([Strides] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)


def strides_same_step(num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    return gym.vector.SyncVectorEnv([Strides] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


@pytest.mark.parametrize("cap", [0, 5])
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_each_episode_is_that_of_its_own_policy(mode: str, cap: int) -> None:
    """Seven pairs in three environments, which begin another episode whenever one ends: as if each were alone."""
    torch.manual_seed(0)
    strides, options, noise = (
        f"{__file__}:strides_{mode}",
        EnvOptions(),
        type("Noise", (), {"arrays": {"noise": TABLE}}),
    )
    policy = EvolutionPolicy(spec(strides, options), hidden=(8,), torso="mlp")

    def play(envs: int, episodes: list[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
        several, unused = population(policy, envs), None
        several.load(policy.state_dict())
        recorder = Recorder()
        worker = EvolutionWorker(
            Context("worker", 0, 1, 0, 0, recorder), make(strides, envs, options), several, unused, unused, noise,  # type: ignore[arg-type]
            size=policy.size, pairs=7, blocks=[0], total=1, noise_std=2.0,
        )  # fmt: skip
        out: dict[str, np.ndarray] | None = {} if envs == 3 else None  # an evaluation has none
        played = worker._play(episodes, np.random.default_rng(0), cap, 0.0, out)
        told = recorder.drain()
        assert told.counts.get("env_steps", 0) == (0 if out is None else played[1].sum())
        assert len(told.episodes) == (0 if out is None else len(episodes)), "the run's are those that it learns from"
        return played

    episodes = [(100 * pair, sign) for pair in range(7) for sign in (0.5, -0.5)]
    returns, lengths = play(3, episodes)
    alone = [play(1, [episode]) for episode in episodes]
    np.testing.assert_allclose(returns, [float(one) for (one,), _ in alone], rtol=1e-4)
    assert lengths.tolist() == [int(one) for _, (one,) in alone]
    assert len(set(lengths.tolist())) > 3 and (not cap or lengths.max() == cap)  # else this shows little


# --------------------------------------------------------------------- many policies at once
ENVS = ["CartPole-v1", "toy:multi", "toy:point", "toy:dict"]


@pytest.mark.parametrize("env", ENVS)
def test_perturbed_policies_are_networks_with_other_parameters(env: str) -> None:
    torch.manual_seed(0)
    policy = EvolutionPolicy(spec(env, EnvOptions()), hidden=(16, 8), bins=0, torso="mlp")
    for norm in policy.norms.values():
        module = cast(RunningNorm, norm)
        module.merge(torch.full(module.shape, 0.3), torch.full(module.shape, 4.0), 10.0)
    batch = make(env, 6, EnvOptions())
    obs = batch.reset(1)
    indices = np.random.default_rng(1).integers(0, len(TABLE) - policy.size, 6)
    fast, plain = PerceptronPopulation(policy, 6), ModulePopulation(policy, 6)
    for one in (fast, plain):
        one.load(policy.state_dict())
    outputs = []
    for scale in (0.5, -0.5, 0.0):
        for row, index in enumerate(indices):
            fast.perturb(row, TABLE[index : index + policy.size], scale)
            plain.perturb(row, TABLE[index : index + policy.size], scale)
        np.testing.assert_allclose(fast.outputs(obs), plain.outputs(obs), rtol=2e-4, atol=2e-4)
        outputs.append(fast.outputs(obs))
    assert np.abs(outputs[0] - outputs[1]).max() > 0.1
    agent = EvolutionAgent(policy, 0)
    act = agent.act(obs, np.ones(6, bool), {}, greedy=True)
    np.testing.assert_allclose(fast.act(obs, np.random.default_rng(0)), act.action, rtol=1e-4, atol=1e-4)


def test_images_are_normalised_by_the_reference() -> None:
    options = EnvOptions()
    policy = EvolutionPolicy(spec("toy:catch", options), reference=32)
    policy.set_reference(random_observations(make("toy:catch", 4, options), 32, 0))
    norms = [m for m in policy.modules() if isinstance(m, VirtualBatchNorm)]
    assert len(norms) == 4  # three convolutions and the fully connected layer
    policy.refer()
    seen: list[torch.Tensor] = []
    hook = norms[0].register_forward_hook(lambda module, inputs, output: seen.append(output.clone()))
    with torch.no_grad():
        policy.encoder(policy.reference())
    hook.remove()
    torch.testing.assert_close(seen[0].mean((0, 2, 3)), torch.zeros(seen[0].shape[1]), atol=1e-4, rtol=0)
    several = population(policy, 3)
    assert isinstance(several, ModulePopulation)
    several.load(policy.state_dict())
    for row in range(3):
        several.perturb(row, TABLE.repeat(200)[10 * row : 10 * row + policy.size], 0.05)
    first, second = several._nets[0], several._nets[1]
    one, other = (next(m for m in net.modules() if isinstance(m, VirtualBatchNorm)) for net in (first, second))
    assert not torch.equal(one.mean, norms[0].mean) and not torch.equal(one.mean, other.mean)
    mine = one.mean.clone()
    first.refer()
    assert torch.equal(mine, one.mean)


def test_statistics_of_a_reference_are_those_of_all_its_rows() -> None:
    norm, x = VirtualBatchNorm(2), torch.tensor([[1.0, 5.0], [3.0, 5.0], [8.0, 6.0]])
    norm.refers = True
    out = norm(x)
    torch.testing.assert_close(norm.mean, x.mean(0))
    torch.testing.assert_close(norm.var, x.var(0, correction=0))
    torch.testing.assert_close(out, (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt())
    norm.refers = False
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([2.0, 3.0]))
        norm.bias.copy_(torch.tensor([0.5, -1.0]))
    torch.testing.assert_close(
        norm(x[:1] + 1.0), (x[:1] + 1.0 - norm.mean) / (norm.var + 1e-5).sqrt() * norm.weight + norm.bias
    )


def test_bins_and_linear_policies() -> None:
    env = spec("toy:point", EnvOptions())
    binned = EvolutionPolicy(env, hidden=(4,), bins=5)
    outputs = torch.randn(40, 5 * len(env.action.low))
    values = binned.parameters_of(outputs)[:, : len(env.action.low)]
    steps = (values - torch.tensor(env.action.low)) / (torch.tensor(env.action.high) - torch.tensor(env.action.low)) * 4
    torch.testing.assert_close(steps, steps.round(), atol=1e-5, rtol=0)
    assert len(values.unique()) == 5
    linear = EvolutionPolicy(env, hidden=())
    assert linear.size == len(env.action.low) * int(np.prod(env.observations["obs"].shape))
    assert not any(p.any() for p in linear.parameters())


# ------------------------------------------------------------------------------------- mistakes
@pytest.mark.parametrize("fields,told", [
    (dict(pairs=10, envs=4), r"pairs \(10\) must be a multiple of envs \(4\), or block must be given"),
    (dict(pairs=10, envs=2, block=3), r"pairs \(10\) must be a multiple of block \(3\)"),
    (dict(pairs=8, envs=4, actors=3), r"actors \(3\) must be at most the blocks of a generation: 2"),
    (dict(device="cuda"), "every process of es computes on the CPU"),
    (dict(unroll=5), "es has no unroll: a worker plays whole episodes"),
    (dict(precision="bf16"), "es computes in fp32"),
    (dict(life_loss=True), "es scores policies by whole games: it takes no life_loss"),
    (dict(pairs=8, top=9), r"top \(9\) must be at most pairs \(8\)"),
    (dict(noise_table=100), r"noise_table \(100\) must be at least the policy's \d+ parameters"),
])  # fmt: skip
def test_settings_that_clash_are_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        es.program(config("es", **{"env": "CartPole-v1", **fields}))


def test_bins_need_bounds() -> None:
    env = spec("toy:point", EnvOptions())
    unbounded = type(env)(**{**env.__dict__, "action": type(env.action)("continuous", (), (-np.inf,), (np.inf,))})
    with pytest.raises(UsageError, match="bounds"):
        EvolutionPolicy(unbounded, bins=3)


def test_a_constant_is_read_and_filled() -> None:
    program = es.program(config("es", env="CartPole-v1"))
    channel = program.channels["noise"]
    program.roles[1].ports["noise"] = channel.writer()
    with pytest.raises(WiringError, match="'noise' is a constant with a writer"):
        program.validate()
