"""The cases of benchmarks/marks.py: systems, their peers, and the marks. A new system is a few lines here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from common import SHOAL, Side


@dataclass(frozen=True)
class Mark:
    """``side`` reaches at least ``factor`` times the fastest side of ``of``; without these, ``factor`` itself. most: at
    most that much."""

    side: str
    factor: float
    of: tuple[str, ...] = ()
    most: bool = False


@dataclass(frozen=True)
class Case:
    """One comparison of ``sides`` by the figure ``key``, of which less may be better (``less``).

    per_update: what an update counts as, of sides that do not tell ``key``. longer: how many times as long as those of
    other cases its windows are. warmup: whether the sides take one."""

    what: str
    sides: tuple[Side, ...]
    marks: tuple[Mark, ...]
    key: str = "env_steps_per_s"
    unit: str = "steps/s"
    per_update: float = 0.0
    longer: float = 1.0
    warmup: bool = True
    less: bool = False


FOREVER = {"steps": 10**9}


def ours(system: str, env: str, name: str = SHOAL, runtime: str = "local", **fields: Any) -> Side:
    """Shoal, with no preset but these fields."""
    words = (system, "--env", env, "--preset", "none", "--runtime", runtime)
    return Side(SHOAL, "ours.py", (*words, "--fields", json.dumps({**FOREVER, **fields})), name=name)


def peer(environment: str, script: str, *args: Any, name: str = "") -> Side:
    """A peer in its environment; ``shoal``: in this one."""
    return Side(environment, f"peers/bench_{script}.py", tuple(str(a) for a in args), name=name)


CARTPOLE, PONG, PENDULUM, CHEETAH = "CartPole-v1", "ALE/Pong-v5", "Pendulum-v1", "HalfCheetah-v5"
NUMPY = ("--vectorize", "vector_entry_point")
CASES: dict[str, Case] = {}

# ---------------------------------------------------------------------------------------- asynchronous, decentralised
for env, name, factor, fields, segment in (
    (CARTPOLE, "cartpole", 5.0, {"activation": "tanh"}, 20),
    (PONG, "pong", 3.0, {"torso": "impala-shallow", "hidden": [256], "activation": "relu", "precision": "fp32"}, 5),
):
    CASES[f"{name}-a3c"] = Case(
        f"Two workers, segments of {segment} steps, shared RMSProp; PFRL has one environment a worker",
        (
            ours("a3c", env, actors=2, envs=1, unroll=segment, **fields),
            ours("a3c", env, "shoal, four environments a worker", actors=2, envs=4, unroll=segment, **fields),
            peer("pfrl", "a3c", "--peer", "pfrl", "--env", env, "--segment", segment),
        ),
        (Mark("shoal", factor, ("pfrl",)), Mark("shoal, four environments a worker", factor, ("pfrl",))),
    )

PPO: dict[str, Any] = {"minibatches": 2, "epochs": 4}
CASES["cartpole-dd-ppo"] = Case(
    "64-64 tanh MLP shared by policy and value; 16,384 steps an update, 4 epochs, minibatches of 8,192 of all ranks",
    (
        ours("dd-ppo", CARTPOLE, "two ranks", actors=2, envs=512, unroll=16, **PPO),
        ours("dd-ppo", CARTPOLE, "one rank", actors=1, envs=1024, unroll=16, **PPO),
        ours("recurrent-ppo", CARTPOLE, "recurrent-ppo", actors=2, envs=512, unroll=16, **PPO),
        peer("rllib", "rllib", "--env", CARTPOLE, "--learners", 2, "--envs", 64, "--batch", 8192, "--minibatch", 4096,
             *NUMPY),
    ),
    (Mark("two ranks", 0.9, ("recurrent-ppo",)), Mark("two ranks", 10, ("rllib",))),
)  # fmt: skip
PPO = {"minibatches": 4, "epochs": 4, "torso": "nature"}
CASES["pong-dd-ppo"] = Case(
    "84x84x4, Nature network; 1,024 steps an update, 4 epochs, minibatches of 256 of all ranks",
    (
        ours("dd-ppo", PONG, "two ranks", actors=2, envs=8, unroll=64, **PPO),
        ours("dd-ppo", PONG, "one rank", actors=1, envs=16, unroll=64, **PPO),
        ours("recurrent-ppo", PONG, "recurrent-ppo", actors=2, envs=8, unroll=64, **PPO),
        peer("rllib", "rllib", "--env", PONG, "--learners", 2, "--envs", 4, "--batch", 512, "--minibatch", 128),
    ),
    (Mark("two ranks", 0.9, ("recurrent-ppo",)), Mark("two ranks", 10, ("rllib",))),
    longer=3.0,
)  # fmt: skip
PPO = {"minibatches": 2, "epochs": 1, "torso": "impala-shallow", "activation": "relu"}
CASES["pointgoal-dd-ppo"] = Case(
    "Point-goal navigation drawn by MiniWorld: the simulator is the bottleneck; 1,024 steps an update, one epoch",
    (
        ours("dd-ppo", "pointgoal:rgb", "two ranks", actors=2, envs=8, unroll=64, **PPO),
        ours("dd-ppo", "pointgoal:rgb", "one rank", actors=1, envs=16, unroll=64, **PPO),
    ),
    (Mark("two ranks", 1.8, ("one rank",)),),
    longer=2.0,
)
WIDE: dict[str, Any] = {"envs": 256, "unroll": 16, "queue": 2, "hidden": [256, 256]}
CASES["cartpole-impala-learners"] = Case(
    "256-256 MLP, 8,192 steps an update: learning is the bottleneck; two actors",
    (
        ours("impala", CARTPOLE, "two learners", actors=2, learners=2, batch=256, **WIDE),
        ours("impala", CARTPOLE, "one learner", actors=2, batch=512, **WIDE),
    ),
    (Mark("two learners", 1.0, ("one learner",)),),
)
PLAYING: dict[str, Any] = {"actors": 2, "envs": 8, "unroll": 20, "torso": "impala-shallow", "precision": "fp32"}
CASES["pong-impala-server"] = Case(
    "84x84x4, shallow network; two actors of eight environments choose their actions or ask an inference server on the "
    "CPU, a process more and a hop for each step",
    (
        ours("impala", PONG, "actors", inference="actor", **PLAYING),
        ours("impala", PONG, "server", inference="server", **PLAYING),
        ours("impala", PONG, "server, two groups an actor", inference="server", double_buffer="on", **PLAYING),
    ),
    (Mark("server", 0.85, ("actors",)),),
    longer=2.0,
)

# --------------------------------------------------------------------------------------------------- continuous control
DPG: dict[str, Any] = {
    "actors": 1, "envs": 2, "unroll": 8, "hidden": [256, 256], "batch": 256, "samples_per_insert": 256.0,
    "replay": 1_000_000, "min_replay": 1_000,
}  # fmt: skip
for env, name in ((PENDULUM, "pendulum"), (CHEETAH, "halfcheetah")):
    CASES[f"{name}-dpg"] = Case(
        "256-256, batches of 256, one update per step; ddpg: Ape-X DPG, one-step, uniform replay, as the peers'",
        (
            ours("apex-dpg", env, "ddpg", prioritised=False, n_step=1, **DPG),
            ours("apex-dpg", env, "apex-dpg", **DPG),
            ours("d4pg", env, "d4pg", v_min=-200.0, v_max=200.0, **DPG),
            peer("sb3", "dpg", "--peer", "sb3", "--env", env),
            peer("sbx", "dpg", "--peer", "sbx", "--env", env),
        ),
        (Mark("ddpg", 2.0, ("sb3",)), Mark("ddpg", 1.2, ("sbx",)), Mark("d4pg", 1 / 1.5, ("apex-dpg",))),
        key="updates_per_s",
        unit="updates/s",
    )

# ---------------------------------------------------------------------------------------------------------- value-based
OFF: dict[str, Any] = {"double": False, "dueling": False, "n_step": 1, "prioritised": False, "noisy": False}
KINDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {  # fields, peers
    "c51": ({**OFF, "returns": "categorical"}, ("tianshou", "pfrl")),
    "qr-dqn": ({**OFF, "returns": "quantile"}, ("tianshou", "sb3")),
    "rainbow": ({"returns": "categorical", "priority_exponent": 0.5}, ("tianshou", "pfrl")),
}
for env, name, factor, batch, longer in ((CARTPOLE, "cartpole", 3.0, 128, 1.0), (PONG, "pong", 2.0, 32, 2.0)):
    for kind, (fields, peers) in KINDS.items():
        if env == CARTPOLE:
            size: dict[str, Any] = {"hidden": [120, 84], "streams": 84, "v_min": -100.0, "v_max": 100.0, "atoms": 51}
            if kind == "rainbow":
                size["hidden"] = [120]
        else:
            size = {"torso": "nature", "hidden": [512], "atoms": 200 if kind == "qr-dqn" else 51}
        given = ("--algo", kind, "--env", env, "--batch", batch)
        CASES[f"{name}-{kind}"] = Case(
            f"Eight environments, batches of {batch}, one update per four steps; PFRL duels on images only",
            (
                ours("rainbow", env, actors=1, envs=8, unroll=8, batch=batch, samples_per_insert=batch / 4, **size,
                     **fields),
                *(peer(p, "value", "--peer", p, *given) for p in peers),
            ),
            (Mark("shoal", factor, peers),),
            key="updates_per_s",
            unit="updates/s",
            longer=longer,
        )  # fmt: skip

LONG = "long_cartpole:make"
R2D2: dict[str, Any] = {"actors": 1, "unroll": 20, "dueling": False, "precision": "fp32", "sequence": 40, "overlap": 20}
SMALL_R2D2: dict[str, Any] = {
    "envs": 8, "hidden": [64], "core_size": 64, "batch": 32, "samples_per_insert": 320.0, **R2D2,
}  # fmt: skip
CASES["cartpole-r2d2"] = Case(
    "32 sequences of 40 steps, which are all full (episodes of 200 steps), a layer of 64 and an LSTM of 64; PFRL does "
    "not burn in, so the mark is of Shoal's side without (the other runs 40 more steps through both networks), "
    "and both of Shoal's prioritise",
    (
        ours("r2d2", LONG, **SMALL_R2D2),
        ours("r2d2", LONG, "shoal, no burn-in", burn_in=0, **SMALL_R2D2),
        peer("pfrl", "recurrent_q", "--peer", "pfrl"),
        peer(SHOAL, "recurrent_q", "--peer", "bare", name="bare update"),
    ),
    (Mark("shoal, no burn-in", 5.0, ("pfrl",)),),
    key="learned_steps_per_s",
    unit="steps learned from/s",
    per_update=32 * 40,
)
CASES["pong-r2d2"] = Case(
    "8 sequences of 40 steps, 40 before them; 84x84x4, Nature network, an LSTM of 512, both in fp32; the limit is "
    "an update on one batch and nothing else",
    (
        ours("r2d2", PONG, envs=8, torso="nature", hidden=[512], core_size=512, batch=8, samples_per_insert=160.0,
             replay=500, min_replay=16, **R2D2),
        peer(SHOAL, "recurrent_q", "--peer", "bare", "--env", PONG, "--batch", 8, name="bare update"),
    ),
    (Mark("shoal", 0.8, ("bare update",)),),
    key="learned_steps_per_s",
    unit="steps learned from/s",
    per_update=8 * 40,
    longer=3.0,
)  # fmt: skip
for item, capacity in (("cartpole", 1_000_000), ("atari", 100_000)):
    CASES[f"{item}-replay-sequences"] = Case(
        "Batches of 64 sequences of 80 steps and 40 before them, or of 512 transitions, of a full prioritised table",
        tuple(
            Side(SHOAL, "ours_replay.py", (item, mode, "--capacity", str(capacity)), name=label)
            for mode, label in (("sequences", "sequences"), ("local", "transitions"))
        ),
        (Mark("sequences", 0.9, ("transitions",)),),
        key="sampled_mb_per_s",
        unit="MB sampled/s",
        longer=0.4,
        warmup=False,
    )

# ------------------------------------------------------------------------------- evolution, servers, populations
ES: dict[str, Any] = {
    "pairs": 256, "envs": 32, "block": 128, "noise_std": 0.05, "learning_rate": 1e-8, "weight_decay": 0.0,
    "normalise_obs": False, "cap": 0, "evaluate_every": 0,
}  # fmt: skip
for env, name in ((CARTPOLE, "cartpole"), (PENDULUM, "pendulum")):
    CASES[f"{name}-es"] = Case(
        "256 pairs a generation, 64-64 tanh, two workers; the step size is 1e-8, so that policies stay as they began",
        (
            ours("es", env, actors=2, **ES),
            ours("es", env, "shoal, one worker", actors=1, **ES),
            peer("evotorch", "es", "--peer", "evotorch", "--env", env, "--population", 512),
            peer("sb3", "es", "--peer", "ars", "--env", env, "--population", 512, name="ars"),
            peer(SHOAL, "es", "--peer", "numpy", "--env", env, "--population", 512, name="bare numpy"),
            peer(
                SHOAL,
                "es",
                "--peer",
                "numpy",
                "--env",
                env,
                "--population",
                512,
                "--workers",
                1,
                name="bare numpy, one worker",
            ),
        ),
        (
            Mark("shoal", 5.0, ("evotorch", "ars")),
            Mark("shoal", 1.0, ("bare numpy",)),
            Mark("shoal", 1.8, ("shoal, one worker",)),
        ),
        longer=2.0 if env == PENDULUM else 1.0,  # whose generations are long
    )
CASES["cartpole-es-paper"] = Case(  # episodes differ in length, so that workers wait at the end of each generation
    "5,000 pairs a generation, as in the paper; otherwise as cartpole-es",
    tuple(ours("es", CARTPOLE, name, actors=actors, **ES | {"pairs": 5_000, "block": 125})
          for name, actors in ((SHOAL, 2), ("shoal, one worker", 1))),
    (Mark("shoal", 1.8, ("shoal, one worker",)),),
    longer=4.0,
)  # fmt: skip

for name, floats in (("small", 4_610), ("nature", 1_700_000)):
    CASES[f"server-{name}"] = Case(
        f"Two workers fetch {floats:,} weights and push one gradient as fast as they can, without learning; one server",
        (
            Side(SHOAL, "ours_server.py", ("--floats", str(floats))),
            peer("rllib", "ps", "--peer", "ray", "--floats", floats, name="ray"),
            peer(SHOAL, "ps", "--peer", "rpc", "--floats", floats, name="rpc"),
        ),
        (Mark("shoal", 3.0, ("ray", "rpc")),),
        key="grads_per_s",
        unit="gradients/s",
        warmup=False,
    )
DQN: dict[str, Any] = {
    "double": False, "n_step": 1, "actors": 1, "envs": 8, "unroll": 8, "batch": 64, "samples_per_insert": 8.0,
    "hidden": [128, 128],
}  # fmt: skip
CASES["cartpole-gorila"] = Case(
    "128-128 MLP, batches of 64, 8 samples per step; Gorila has one actor, one learner and one shard, a process more",
    (
        ours("gorila", CARTPOLE, "gorila", learners=1, shards=1, max_lag=0, outliers=0.0, **DQN),
        ours("dqn", CARTPOLE, "dqn", **DQN),
    ),
    (Mark("gorila", 0.8, ("dqn",)),),
    key="updates_per_s",
    unit="updates/s",
)
CASES["turns-pbt"] = Case(
    "Eight members on two workers; a turn sleeps 50 ms and is followed by exploit and explore; a state of 1 MiB",
    (
        Side(SHOAL, "ours_pbt.py", ("objective",)),
        peer("rllib", "pbt", "--peer", "tune", name="ray tune"),
    ),
    (Mark("shoal", 20.0, most=True),),
    key="overhead_ms",
    unit="ms a turn beside the work",
    longer=2.0,
    less=True,
)
MEMBER: dict[str, Any] = {"actors": 1, "unroll": 32, "minibatches": 4, "epochs": 3, "learning_rate": 1e-3}


def population(size: int, envs: int, name: str, interval: int = 150_000) -> Side:
    fields = json.dumps({**MEMBER, "envs": envs})
    words = ("members", "--population", size, "--interval", interval, "--fields", fields)
    return Side(SHOAL, "ours_pbt.py", tuple(str(word) for word in words), name=name)


CASES["cartpole-pbt"] = Case(
    "Recurrent PPO, a process a member, slices of 150,000 steps; the plain run is serial too, and writes no files",
    (
        population(1, 32, "one member"),
        population(2, 16, "two members of half the environments"),
        ours("recurrent-ppo", CARTPOLE, "plain run", "serial", envs=32, **MEMBER),
    ),
    (Mark("one member", 0.97, ("plain run",)), Mark("two members of half the environments", 0.9, ("one member",))),
)
