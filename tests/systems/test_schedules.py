"""Settings that are schedules: how they are written, which settings may be one, and that every learner follows them."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Snapshots, config, run

import shoal
from shoal import linear
from shoal.api import Batch, Context, UsageError
from shoal.cli import main as cli
from shoal.learning.differentiate import differentiate
from shoal.learning.learner import SGDLearner
from shoal.metering.recorder import Recorder
from shoal.nets.actor_critic import ActorCritic
from shoal.ops import Adam, importance_weights, linear as straight
from shoal.policy import Policy
from shoal.records.metric_files import read_curve
from shoal.run.flags import resolve_flags
from shoal.settings.config import coerce_all, resolve, show
from shoal.settings.flags import ranged, scheduled, split
from shoal.settings.schedule import Linear, at, plain, read
from shoal.settings.toml_text import to_toml
from shoal.systems import apex_dqn, dqn, impala, load, recurrent_ppo
from shoal.topology.replayed import descent, progress

FALL, RISE = linear(2e-3, 0), linear(0.4, 1)


# ----------------------------------------------------------------------------------------- values
def test_a_fall_to_zero_is_what_anneal_was_bit_for_bit() -> None:
    for fraction in (*np.random.default_rng(0).random(1_000), 0.0, 1.0, 1.5, -0.1):
        assert FALL.at(fraction) == 2e-3 * straight(1.0, 0.0, fraction)
        assert RISE.at(fraction) == pytest.approx(straight(0.4, 1.0, fraction), rel=1e-15)
    assert (at(FALL, 0.25), at(0.5, 0.25)) == (1.5e-3, 0.5)


def test_a_schedule_is_its_start_to_those_who_do_not_ask_and_no_number_equals_it() -> None:
    assert FALL * 2 == 4e-3 and float(FALL) == 2e-3 and FALL != 2e-3 and linear(2e-3, 1) != FALL
    assert pickle.loads(pickle.dumps(FALL)) == FALL and {FALL, linear(2e-3, 0.0)} == {FALL}
    assert [str(s) for s in (FALL, linear(1 / 3, 2))] == ["linear(0.002, 0)", "linear(0.3333333333333333, 2)"]
    assert all(read(str(s)) == s for s in (FALL, RISE, linear(1 / 3, -1e-300)))
    with pytest.raises(ValueError, match="finite"):
        linear(1.0, float("inf"))


# ------------------------------------------------------------------------------------- as written
def test_flag_file_and_argument_give_the_same(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('learning_rate = "linear(2e-3, 0)"\n')
    flag = resolve_flags("dqn", dqn, split(["--learning-rate", "linear(2e-3,0)"]), {})[1]
    in_file = resolve(dqn, file=tmp_path / "x.toml")
    argument = resolve(dqn, overrides={"learning_rate": FALL}, source="argument")
    text = resolve(dqn, overrides={"learning_rate": "linear(0.002, 0.0)"}, source="argument")
    for resolved in (flag, in_file, argument, text):
        assert resolved.cfg.learning_rate == FALL
    (tmp_path / "again.toml").write_text(to_toml(flag, "dqn"))
    assert resolve(dqn, file=tmp_path / "again.toml", name="dqn").cfg == flag.cfg
    again = json.loads(json.dumps(plain(flag.values())))
    assert again["learning_rate"] == show(FALL) == "linear(0.002, 0)"
    assert dqn.Config(**coerce_all(dqn.Config, again, "config.json")) == flag.cfg


@pytest.mark.parametrize("words, wrong", [
    ("--learning-rate linear(1)", "--learning-rate expects a finite number of at least 0 or linear(a, b) of two such, "
                                  "found 'linear(1)'"),
    ("--learning-rate linear(1e-3,-1)", "or linear(a, b) of two such, found 'linear(1e-3,-1)'"),
    ("--learning-rate linear(inf,0)", "or linear(a, b) of two such, found 'linear(inf,0)'"),
    ("--max-grad-norm linear(1,0)", "--max-grad-norm expects a finite number above 0 or none or linear(a, b) of two"),
    ("--gamma linear(0.9,1)", "--gamma expects a number from 0 to 1, the same for the whole run, found 'linear"),
    ("--batch linear(16,32)", "--batch expects an integer of at least 1, the same for the whole run"),
    ("--hidden linear(16,32)", "--hidden expects integers of at least 1, the same for the whole run"),
    ("--anneal", "there is no '--anneal' any more: --learning-rate may be a schedule, as in --learning-rate "
                 "'linear(0.001, 0)', and is constant otherwise"),
    ("--no-anneal", "there is no '--no-anneal' any more: --learning-rate may be"),
])  # fmt: skip
def test_what_cannot_be_is_refused_in_one_sentence(words: str, wrong: str, capsys: Any, tmp_path: Path) -> None:
    flag, *rest = words.split(" ")
    assert cli.main(["train", "dqn", "--run-dir", str(tmp_path / "r"), flag, *rest]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("shoal: ") and wrong in sentence
    assert not (tmp_path / "r").exists()


def test_the_other_flag_that_went() -> None:
    with pytest.raises(UsageError, match="no '--anneal-clip' any more: --clip may be a schedule"):
        resolve_flags("recurrent-ppo", recurrent_ppo, split(["--anneal-clip"]), {})
    with pytest.raises(UsageError, match="no 'anneal' any more: learning_rate may be"):
        resolve(dqn, overrides={"anneal": True}, source="argument")


def test_runs_of_the_version_before_are_read() -> None:
    """Their config.json has ``anneal``; the exponent of importance weights rose without being told."""
    old = plain(resolve(recurrent_ppo, "none").values()) | {"learning_rate": 0.01, "clip": 0.3}
    found = coerce_all(recurrent_ppo.Config, {**old, "anneal": True, "anneal_clip": False}, "config.json")
    assert (found["learning_rate"], found["clip"]) == (linear(0.01, 0), 0.3)
    found = coerce_all(recurrent_ppo.Config, {**old, "anneal": False, "anneal_clip": True}, "config.json")
    assert (found["learning_rate"], found["clip"]) == (0.01, linear(0.3, 0))
    for module, exponent in ((dqn, linear(0.5, 1)), (apex_dqn, 0.5)):
        values = plain(resolve(module, "none").values()) | {"importance_exponent": 0.5, "anneal": False}
        assert coerce_all(module.Config, values, "config.json")["importance_exponent"] == exponent


def test_population_members_find_their_own_schedule() -> None:
    from shoal.cli.population import space_of

    values: dict[str, Any] = {"learning_rate": "linear(0.001, 0)", "clip": "linear(0.1, 0)"}
    space_of("learning_rate", values, "impala", {"learning_rate": float})
    assert values == {"learning_rate": 0.001, "clip": "linear(0.1, 0)"}


def test_a_saved_policy_keeps_its_schedules(tmp_path: Path) -> None:
    cfg = config("recurrent-ppo", env="CartPole-v1")
    policy = Policy(recurrent_ppo, cfg, recurrent_ppo.network(cfg).state_dict())
    policy.save(tmp_path / "p.safetensors")
    assert shoal.load(tmp_path / "p.safetensors").cfg.learning_rate == linear(3e-4, 0)


# --------------------------------------------------------------------------------------- followed
CASES: dict[str, dict[str, Any]] = {
    "dqn": dict(prioritised=True, td_clip=linear(1.0, 0.5)),
    "apex-dqn": dict(importance_exponent=linear(0.4, 1)),
    "r2d2": dict(importance_exponent=linear(0.6, 1)),
    "rainbow": dict(),
    "d4pg": dict(prioritised=True, importance_exponent=linear(0.4, 1), action_gradient_clip=linear(1.0, 0.1)),
    "impala": dict(entropy_cost=linear(0.1, 0), value_cost=linear(0.5, 1), trace_lambda=linear(1, 0.5)),
    "recurrent-ppo": dict(entropy_cost=linear(0.1, 0), clip=linear(0.2, 0), gae_lambda=linear(0.9, 1)),
    "dd-ppo": dict(entropy_cost=linear(0.1, 0), clip=linear(0.2, 0), gae_lambda=linear(0.9, 1)),
    "a3c": dict(entropy_cost=linear(0.1, 0), value_cost=linear(0.5, 1)),
    "async-q": dict(),
    "gorila": dict(td_clip=linear(1.0, 0.5)),
    "es": dict(),
}


@pytest.mark.parametrize("system", CASES)
def test_every_learner_follows_its_schedules_and_tells_them(system: str) -> None:
    """All of them lie on the straight line at the same place of the run, which moves with its steps."""
    clip = {} if system == "es" else {"max_grad_norm": linear(10.0, 1.0)}
    fields = {**CASES[system], **clip, "learning_rate": linear(1e-3, 1e-4), "steps": 6_000}
    cfg = config(system, **fields)
    observer = Snapshots()
    run(load(system).program(cfg), 12 if system != "es" else 3, observers=[observer])
    planned = {name: value for name, value in vars(cfg).items() if isinstance(value, Linear)}
    assert planned.keys() >= fields.keys() - {"prioritised", "steps"}
    last = observer.seen[-1]
    for name, schedule in planned.items():
        told = last.records[name]
        done = (told - schedule.start) / (schedule.end - schedule.start)
        assert 0.0 < done < 1.2 * last.steps / cfg.steps, (name, told, done)


def test_a_loss_reads_the_values_of_the_moment() -> None:
    cfg = config("impala", entropy_cost=linear(0.4, 0), value_cost=linear(0, 2), env="toy:bandit-identity")
    torch.manual_seed(0)
    nets = impala.network(cfg)
    items = {
        "obs": torch.randn(3, 2, 4), "first": torch.zeros(3, 2, dtype=torch.bool),
        "action": torch.randint(4, (2, 2)), "reward": torch.randn(2, 2), "policy": torch.randn(2, 2, 4),
        "terminated": torch.zeros(2, 2, dtype=torch.bool), "truncated": torch.zeros(2, 2, dtype=torch.bool),
        "valid": torch.ones(2, 2, dtype=torch.bool),
    }  # fmt: skip

    def loss(cfg: Any, fraction: float) -> float:
        algorithm = impala.VTrace(cfg, nets)
        algorithm.at(fraction)
        return differentiate(algorithm, Batch(items))[0].item()

    assert loss(cfg, 0.75) == loss(replace(cfg, entropy_cost=linear(0.4, 0).at(0.75), value_cost=1.5), 0.75)
    assert loss(cfg, 0.75) != pytest.approx(loss(cfg, 0.25))


def test_importance_weights_take_the_exponent_of_the_moment() -> None:
    cfg = config("dqn", prioritised=True, importance_exponent=RISE)
    algorithm = dqn.QLearning(cfg, dqn.network(cfg), dqn.importance_exponent(cfg))
    batch = Batch({"reward": torch.zeros(4)}, torch.arange(4), torch.tensor([0.1, 0.2, 0.3, 0.4]), 100)
    for fraction in (0.0, 0.5):
        algorithm.at(fraction)
        assert batch.probs is not None
        expected = 0.25 * importance_weights(batch.probs, 100, RISE.at(fraction))
        assert torch.equal(algorithm.prepare(batch).items["weight"], expected)


def test_where_nobody_knows_the_number_of_updates_steps_count() -> None:
    """Ape-X's paper preset: acting and learning never wait for each other."""
    cfg = config("dqn", samples_per_insert=0.0, learning_rate=linear(1.0, 0.0), steps=1_000)
    ctx = Context("learner", 0, 1, 0, 0, Recorder(), steps=lambda: 250)
    learner = descent(cfg, ctx, dqn.QLearning(cfg, dqn.network(cfg)))
    assert learner.progress is not None and learner.progress(10**6) == 0.25


def test_a_sequence_is_not_so_many_steps() -> None:
    """Short episodes make more sequences of R2D2's than their ratio tells, and more updates: its steps count."""
    cfg = config("r2d2", learning_rate=linear(1.0, 0.0), steps=1_000)
    ctx = Context("learner", 0, 1, 0, 0, Recorder(), steps=lambda: 250)
    assert cfg.samples_per_insert > 0 and progress(cfg, ctx, 10**6) == 0.25


def test_a_learner_that_cannot_say_how_far_it_is_refuses_schedules() -> None:
    cfg = config("impala", learning_rate=linear(1e-3, 0))
    nets: ActorCritic = impala.network(cfg)
    with pytest.raises(UsageError, match=r"knows no schedules .* but learning_rate is linear\(0.001, 0\)"):
        SGDLearner(impala.VTrace(cfg, nets), Adam(nets.parameters()))
    still = replace(cfg, learning_rate=1e-3)
    with pytest.raises(UsageError, match="knows no schedules"):
        SGDLearner(impala.VTrace(still, nets), Adam(nets.parameters()), max_grad_norm=linear(1, 2))
    SGDLearner(impala.VTrace(still, nets), Adam(nets.parameters()))


def test_settings_that_may_be_schedules() -> None:
    """Of every system: those that its learner reads at each update."""
    common = {"learning_rate", "max_grad_norm"}
    loss, ppo = {"value_cost", "entropy_cost"}, {"clip", "gae_lambda", "target_kl"}
    wanted = {
        "dqn": {"td_clip", "importance_exponent"}, "r2d2": {"td_clip", "importance_exponent"},
        "d4pg": {"action_gradient_clip", "importance_exponent"}, "a3c": loss, "dd-ppo": loss | ppo,
        "recurrent-ppo": loss | ppo, "impala": loss | {"trace_lambda", "rho_bar", "c_bar"},
    }  # fmt: skip
    for system, names in wanted.items():
        hints = ranged(load(system).Config)
        assert {name for name, hint in hints.items() if scheduled(hint)} == names | common, system
    assert {name for name, hint in ranged(load("es").Config).items() if scheduled(hint)} == {"learning_rate"}


def test_a_run_writes_its_schedule_down_and_follows_it_from_the_command_line(tmp_path: Path) -> None:
    words = "--env CartPole-v1 --preset none --actors 1 --envs 4 --unroll 8 --hidden 8 --runtime serial --steps 3000"
    more = ("--quiet", "--run-dir", str(tmp_path / "r"), "--learning-rate", "linear(1e-3, 2e-3)")
    assert cli.main(["train", "impala", *words.split(), *more]) == 0
    assert json.loads((tmp_path / "r" / "config.json").read_text())["config"]["learning_rate"] == "linear(0.001, 0.002)"
    rates = [row["learning_rate"] for row in read_curve(tmp_path / "r") if "learning_rate" in row]
    assert rates == sorted(rates) and 1e-3 < rates[0] < rates[-1] < 2e-3
