"""Environments, agents, learners and ports whose every number is known beforehand, for tests of single roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from shoal.api import Act, Action, Arrays, Batch, Context, EnvSpec, EnvStep, Episode, Observation, Tensors, Update
from shoal.metering.recorder import Recorder


def context(role: str = "role", index: int = 0, replicas: int = 1, seed: int = 0, **fields: Any) -> Context:
    return Context(role, index, replicas, 0, seed, Recorder(), **fields)


class ScriptedEnvs:
    """Episodes of known lengths. A frame says where it is from: 1,000 * environment + 100 * episode + step. Without a
    stack, an observation is the number of the environment and the frame.

    script: of each environment, (length, how it ends) of its episodes, over and over. stack: frames in an observation;
    before an episode's first one, that one is repeated.
    """

    def __init__(
        self, script: list[list[tuple[int, str]]], autoreset: str = "next_step", stack: int = 1, reward: float = 1.0
    ) -> None:
        shape = (stack, 1, 1) if stack > 1 else (2,)
        observations = {"obs": Observation(shape, "float32"), "obs/side": Observation((2,), "float32")}
        self.spec = EnvSpec("Scripted", observations, Action("discrete", (7,)), stack=stack, autoreset=autoreset)  # type: ignore[arg-type]
        self.num_envs, self.script, self.stack, self.reward = len(script), script, stack, reward
        self.seeds: list[int] = []
        self.actions: list[np.ndarray] = []
        self.closed = False

    def reset(self, seed: int) -> Arrays:
        self.seeds.append(seed)
        self.at = [(0, 0)] * self.num_envs  # (episode, step)
        self.ended = np.zeros(self.num_envs, bool)
        self.returns = np.zeros(self.num_envs)
        return self._observe()

    def _observe(self) -> Arrays:
        frames = np.array([
            [1_000 * e + 100 * episode + max(0, step - k) for k in range(self.stack - 1, -1, -1)]
            for e, (episode, step) in enumerate(self.at)
        ], np.float32)  # fmt: skip
        obs = frames[..., None, None] if self.stack > 1 else np.hstack([frames // 1_000, frames])
        return {"obs": obs, "obs/side": np.hstack([-frames[:, -1:], frames[:, :1] // 1_000])}

    def step(self, action: np.ndarray) -> EnvStep:
        self.actions.append(np.array(action))
        valid = ~self.ended
        reward, ends = np.zeros(self.num_envs, np.float32), np.zeros((2, self.num_envs), bool)
        episodes = []
        for e, (episode, step) in enumerate(self.at):
            if self.ended[e]:
                self.at[e] = (episode + 1, 0)
                continue
            length, how = self.script[e][episode % len(self.script[e])]
            reward[e] = self.reward * (1 + e) + action[e]
            self.returns[e] += reward[e]
            self.at[e] = (episode, step + 1)
            if step + 1 == length:
                ends[:, e] = "terminated" in how, "truncated" in how
                episodes.append(Episode(float(self.returns[e]), length, {"number": 10.0 * e + episode}))
                self.returns[e] = 0.0
        self.ended = ends[0] | ends[1]
        final = None
        if self.spec.autoreset == "same_step":
            final = self._observe()
            for e in np.flatnonzero(self.ended).tolist():
                self.at[e] = (self.at[e][0] + 1, 0)
            self.ended = np.zeros(self.num_envs, bool)
        return EnvStep(self._observe(), reward, ends[0], ends[1], valid, final, episodes)

    def so_far(self) -> list[Episode]:
        return [Episode(float(ret), step) for ret, (_, step) in zip(self.returns, self.at, strict=True)]

    def close(self) -> None:
        self.closed = True


class SummingAgent:
    """Its recurrent state is the sum of the frames of the episode so far; its value 10 * that sum, in units of the
    parameters; its action that sum modulo 7, or 0 if greedy."""

    def __init__(self) -> None:
        self.scale, self.version, self.greedy = 0.0, 0, [False]
        self.loaded: list[int] = []
        self.calls = 0

    def initial_state(self, envs: int) -> Tensors:
        return {"sum": torch.full((envs, 1), 50.0)}  # it counts for nothing: every episode's first row is cleared

    def act(self, obs: Arrays, first: np.ndarray, state: Tensors, greedy: bool = False) -> Act:
        self.calls += 1
        self.greedy.append(greedy)
        before = np.where(first[:, None], 0.0, state["sum"].numpy())
        total = before + obs["obs"].reshape(len(first), -1)[:, -1:]
        value = (self.scale * 10 * total[:, 0]).astype(np.float32)
        action = np.zeros(len(first), np.int64) if greedy else total[:, 0].astype(np.int64) % 7
        extras = {"value": value, "q_max": value + 1 + greedy, "q_taken": value - 1}
        return Act(action, {"sum": torch.from_numpy(total.astype(np.float32))}, extras)

    def load(self, params: Tensors, version: int) -> None:
        self.loaded.append(version)
        self.scale, self.version = float(params["scale"]), version

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls, "scale": self.scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls, self.scale = state["calls"], state["scale"]


class Params:
    """Both ends of parameters."""

    def __init__(self, version: int = 0) -> None:
        self.version, self.published = version, [{"scale": torch.tensor(1.0)}]
        self.asked: list[int] = []

    def ready(self) -> bool:
        return True

    def publish(self, params: Tensors) -> int:
        self.published.append({name: tensor.clone() for name, tensor in params.items()})
        self.version += 1
        return self.version

    @contextmanager
    def slot(self) -> Iterator[Tensors]:
        params = {name: torch.empty_like(tensor) for name, tensor in self.published[-1].items()}
        yield params
        self.publish(params)

    def latest(self, newer_than: int = -1) -> tuple[int, Tensors] | None:
        self.asked.append(newer_than)
        return (self.version, self.published[-1]) if self.version > newer_than else None

    def newest(self) -> int:
        return self.version


class PlainAgent:
    """Nothing to remember, nothing to store, nothing to save."""

    def initial_state(self, envs: int) -> Tensors:
        return {}

    def act(self, obs: Arrays, first: np.ndarray, state: Tensors, greedy: bool = False) -> Act:
        return Act(np.zeros(len(first), np.int64), {}, {})

    def load(self, params: Tensors, version: int) -> None: ...


class Slot:
    def __init__(self, owner: Writer, version: int) -> None:
        self.owner, self.version = owner, version

    def __enter__(self) -> Arrays:
        self.arrays = {name: np.full(f.shape, 77, f.dtype) for name, f in self.owner.spec.items()}
        return self.arrays

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is None:
            self.owner.items.append(self.arrays)
            self.owner.versions.append(self.version)


class Writer:
    """Keeps what is put; ``room``: whether there is any."""

    def __init__(self, spec: Mapping[str, Any] | None = None) -> None:
        self.spec, self.room = spec or {}, True
        self.items: list[Arrays] = []
        self.versions: list[Any] = []

    def ready(self) -> bool:
        return self.room

    def slot(self, version: int = 0) -> Slot:
        return Slot(self, version)

    def put(self, items: Arrays, version: Any = 0) -> None:
        assert self.room, "put where there is no room"
        self.items.append({name: np.array(array) for name, array in items.items()})
        self.versions.append(version)


class Reader:
    """Gives prepared batches, and keeps the priorities."""

    def __init__(self, *batches: Batch) -> None:
        self.batches = list(batches)
        self.priorities: list[tuple[list[int], list[float]]] = []

    def ready(self) -> bool:
        return bool(self.batches)

    poll = ready

    def get(self) -> Batch:
        return self.batches.pop(0)

    def reprioritise(self, keys: torch.Tensor, priorities: torch.Tensor) -> None:
        self.priorities.append((keys.tolist(), priorities.tolist()))


class Reducers:
    """A reduce channel's end whose siblings put nothing: a get gives what was put."""

    def __init__(self, spec: Mapping[str, Any] | None = None) -> None:
        self.spec, self.puts, self.pending = spec or {}, [], False  # type: ignore[var-annotated]

    def ready(self) -> bool:
        return True

    def put(self, items: Arrays) -> None:
        assert not self.pending
        self.puts.append({name: np.array(array) for name, array in items.items()})
        self.pending = True

    @contextmanager
    def slot(self) -> Iterator[Arrays]:
        arrays = {name: np.full(f.shape, 77, f.dtype) for name, f in self.spec.items()}
        yield arrays
        self.put(arrays)

    def get(self) -> Tensors:
        assert self.pending
        self.pending = False
        return {name: torch.from_numpy(np.asarray(array)) for name, array in self.puts[-1].items()}


class CountingLearner:
    """Every update adds its batch's ``x`` to the weight and makes ``per`` gradient steps."""

    def __init__(self, per: int = 1) -> None:
        self.step, self.per, self.weight = 0, per, torch.zeros(1)

    def update(self, batch: Batch) -> Update:
        self.step += self.per
        self.weight = self.weight + batch.items["x"].sum()
        priorities = None if batch.keys is None else batch.keys * 2.0
        return Update({"loss": float(batch.items["x"].sum())}, priorities)

    def params(self) -> Tensors:
        return {"weight": self.weight}

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "weight": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.weight = state["step"], state["weight"]
