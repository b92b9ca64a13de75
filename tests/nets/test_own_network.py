"""A network of the user's own as a torso: when it is in eval mode, what travels of it, and its mistakes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from modules import module_of
from own_torsos import Layers
from present import present
from torch import nn

from shoal import own_code
from shoal.api import Observation, UsageError
from shoal.nets import Encoder
from shoal.policy import Policy
from shoal.policy.export import export, policy_module
from shoal.systems import load
from shoal.topology.config import anchored

FILE = str(Path(__file__).with_name("own_torsos.py"))
VECTOR = Observation((4,), "float32")
ACTS: dict[str, dict[str, Any]] = {
    "dqn": {}, "r2d2": {"last_action_reward": False}, "impala": {}, "recurrent-ppo": {"separate_critic": True},
    "es": {}, "qt-opt": {},
}  # fmt: skip


def policy_of(system: str, torso: str, **fields: Any) -> Policy:
    """As it is before a run, in an environment of four numbers (qt-opt: three)."""
    module = load(system)
    env = "Pendulum-v1" if system == "qt-opt" else "CartPole-v1"
    cfg = module.Config(env=env, torso=f"{FILE}:{torso}", **fields)
    torch.manual_seed(0)
    return Policy(module, cfg, module.network(cfg).state_dict())  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def modules(tmp_path: Path) -> Iterator[None]:
    """Modules of one test are not those of the next."""
    path = [*sys.path]
    yield
    sys.path[:] = path
    for name in [name for name in sys.modules if name.startswith("_shoal_own_")]:
        del sys.modules[name]


# -------------------------------------------------------------------------------- train and eval mode
@pytest.mark.parametrize("torso", ["dropout", "batch_norm"])
@pytest.mark.parametrize("system, fields", ACTS.items(), ids=list(ACTS))
def test_who_acts_is_in_eval_mode(system: str, fields: dict[str, Any], torso: str, tmp_path: Path) -> None:
    """One observation makes a batch of one, of which batch normalisation in train mode knows no deviation."""
    policy = policy_of(system, torso, **fields)
    obs = np.linspace(-1, 1, policy.spec.observations["obs"].shape[0], dtype=np.float32)
    before = {k: v.clone() for k, v in policy.agent.nets.state_dict().items()}  # type: ignore[attr-defined]
    found = []
    for _ in range(8):
        policy.reset()
        found.append(policy.act(obs))
    assert all(np.array_equal(found[0], other) for other in found)
    after = policy.agent.nets.state_dict()  # type: ignore[attr-defined]
    assert all(torch.equal(before[name], after[name]) for name in before), "acting changes nothing"
    module = policy_module(policy)
    state = [torch.ones(1, dtype=torch.bool), *policy.agent.initial_state(1).values()] if module.state_names else []
    exported = module(torch.from_numpy(obs)[None], *state)[0]
    assert np.allclose(exported[0].numpy(), found[0], atol=1e-5)
    export(policy, "torchscript", tmp_path / "o")  # which compares the two on examples


def test_the_learner_trains_and_its_target_network_does_not() -> None:
    dqn = module_of("dqn")
    nets = dqn.network(dqn.Config(env="CartPole-v1", torso=f"{FILE}:dropout"))
    from shoal.systems.dqn import QLearning

    algorithm = QLearning(dqn.Config(env="CartPole-v1"), nets)
    assert algorithm.nets.training and not algorithm.target.training
    obs = {"obs": torch.ones(64, 4)}
    one, other = nets(obs), nets(obs)
    assert not torch.equal(one, other), "with a gradient, units drop out"
    with torch.no_grad():
        assert torch.equal(nets(obs), nets(obs)), "the action of double Q-learning is chosen without"
    assert nets.encoder.own.training


def test_without_a_gradient_a_network_is_in_eval_mode_and_what_the_user_has_fixed_stays_fixed() -> None:
    own = Layers({"obs": VECTOR}, nn.Dropout(0.5), nn.BatchNorm1d(16))
    own.rest[1].eval()
    encoder = Encoder({"obs": VECTOR}, lambda observations: own)
    x = {"obs": torch.ones(64, 4)}
    encoder(x)
    with torch.no_grad():
        assert torch.equal(encoder(x), encoder(x))
    assert own.training and own.rest[0].training and not own.rest[1].training
    assert int(cast(nn.BatchNorm1d, own.rest[1]).num_batches_tracked or 0) == 0


def test_running_statistics_travel_with_the_parameters() -> None:
    policy = policy_of("impala", "batch_norm")
    learner = module_of("impala").network(policy.cfg)
    learner.encoder({"obs": torch.full((8, 4), 3.0)})
    policy.agent.load(learner.state_dict(), 1)
    norm = policy.agent.nets.encoder.own.rest[0]  # type: ignore[attr-defined]
    assert int(norm.num_batches_tracked) == 1
    assert torch.equal(norm.running_mean, learner.encoder.own.rest[0].running_mean) and norm.running_mean.any()


def test_qt_opt_averages_running_statistics_and_takes_over_counters() -> None:
    from shoal.systems.qt_opt.rule import LabelledQ

    qt_opt = module_of("qt-opt")
    cfg = qt_opt.Config(env="Pendulum-v1", torso=f"{FILE}:batch_norm", polyak=0.5)
    rule = LabelledQ(cfg, qt_opt.network(cfg))
    learned = rule.nets.encoder.own.rest[0]
    learned.running_mean += 2.0
    learned.num_batches_tracked += 3
    rule.after_step(1)
    average: Any = present(rule.average)
    averaged = average.encoder.own.rest[0]
    assert torch.equal(averaged.running_mean, learned.running_mean / 2) and int(averaged.num_batches_tracked) == 3


def test_running_statistics_are_refused_where_only_gradients_travel() -> None:
    a3c = module_of("a3c")
    cfg = a3c.Config(env="CartPole-v1", torso=f"{FILE}:batch_norm")
    with pytest.raises(UsageError, match=r"gradients move, and the network has the buffer '.*running_mean'"):
        a3c.program(cfg)
    a3c.program(replace(cfg, torso=f"{FILE}:dropout"))


# --------------------------------------------------------------------------------------- where it is
def test_a_file_is_found_read_again_where_it_is_edited_and_means_the_same_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    text = f"import sys\nsys.path.append({str(Path(FILE).parent)!r})\nfrom own_torsos import Layers\n"
    for features in (16, 24):
        file.write_text(f"{text}def torso(observations):\n    return Layers(observations, features={features})\n")
        os.utime(file, (1e9, 1e9))  # as of an edit within the same second
        own_code.forget_edited()  # a run begins
        assert Encoder({"obs": VECTOR}, "mine.py:torso").features == features
    values = {"env": "mine.py:Env", "torso": "mine.py:torso", "demonstrations": "mine.py:played"}
    names = {"env": "Env", "torso": "torso", "demonstrations": "played"}
    assert anchored(values) == {field: f"{file}:{name}" for field, name in names.items()}
    assert anchored({"env": "a:B", "torso": "mlp"}) == {"env": "a:B", "torso": "mlp"}


@pytest.mark.parametrize(
    "torso, says",
    [
        ("nowhere.py:torso", "torso 'nowhere.py:torso': there is no file 'nowhere.py'"),
        (f"{FILE}:nothing", "cannot be imported: module '.*own_torsos.py' has no attribute 'nothing'"),
        ("__main__:torso", "torso '__main__:torso' is in the script that runs, which other processes lack"),
        (f"{FILE}:fails", r"own_torsos.py:fails' cannot be made: KeyError: 'x' \(.*own_torsos.py, line \d+\)"),
    ],
)
def test_what_is_wrong_with_it_is_one_sentence(torso: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as refusal:
        Encoder({"obs": VECTOR}, torso)
    assert "\n" not in str(refusal.value)


# ---------------------------------------------------------------------------------------------- keys
def test_every_image_has_a_torso_of_its_own() -> None:
    image = Observation((3, 36, 36), "uint8", "image")
    encoder = Encoder(dict.fromkeys(("obs/a.b", "obs/a_b", "obs/a%2Eb"), image))
    assert len(encoder.images) == 3 and encoder.features == 3 * 512 == encoder.seen_features
    assert "obs/a_b" in encoder.images  # a plain name is the key itself
    rows = {name: torch.randint(0, 256, (2, 3, 36, 36), dtype=torch.uint8) for name in encoder.observations}
    assert torch.equal(encoder(rows), encoder.see(rows))
