"""Counting environments whose observations say where they are, and a checker of the items cut from them."""

from __future__ import annotations

from typing import Literal, TypeVar

import numpy as np

from shoal.api import Batch, Field
from shoal.replay.sampler import Sampler
from shoal.replay.store import Store

Evict = Literal["fifo", "proportional"]
Pad = Literal["repeat", "zero"]
Initial = Literal["max", "given"]
Kind = TypeVar("Kind", bound=Sampler)

LEAD_FLAGS = ("terminated", "truncated", "valid", "first")


def unroll_spec(steps: int, envs: int, same_step: bool, image: bool, q: bool = True) -> dict[str, Field]:
    lead = (steps, envs)
    obs = Field((*lead, 1, 2, 3), "uint8") if image else Field((*lead, 4), "float32")
    out = {"obs": obs, "obs/where": Field((*lead, 4), "int32"), "action": Field(lead, "int64")}
    out |= {"reward": Field(lead), **{name: Field(lead, "bool") for name in LEAD_FLAGS}}
    if q:
        out |= {"q_taken": Field(lead), "q_max": Field(lead)}
    out["extra"] = Field((*lead, 3), "uint8")
    if same_step:
        out |= {"final/obs": obs, "final/obs/where": out["obs/where"]}
    return out


def sampler_of(table: Store, kind: type[Kind]) -> Kind:
    """Return the sampler of a table. Raises AssertionError if it is of another kind."""
    assert isinstance(table.sampler, kind)
    return table.sampler


class Counting:
    """One life (writer, generation) of ``envs`` environments. ``where`` = (life, env, episode, step)."""

    def __init__(self, life: int, steps: int, envs: int, same_step: bool, image: bool, seed: int, mean: float = 6.0):
        self.spec = unroll_spec(steps, envs, same_step, image)
        self.life, self.steps, self.envs, self.same_step, self.image = life, steps, envs, same_step, image
        self.rng = np.random.default_rng(seed)
        self.mean = mean
        self.actions: dict[tuple[int, int, int], list[int]] = {}
        self.rewards: dict[tuple[int, int, int], list[float]] = {}
        self.ends: dict[tuple[int, int, int], str] = {}
        self.at = [[0, 0] for _ in range(envs)]  # episode, step
        self.reset_row = [False] * envs

    def frame(self, env: int, episode: int, step: int) -> np.ndarray:
        if not self.image:
            return np.array([self.life, env, episode, step], np.float32)
        mixed = (((self.life * 31 + env) * 1009 + episode) * 1013 + step) * 2654435761
        noise = (mixed >> 9) % 256, (mixed >> 20) % 256
        return np.array([self.life + 1, env, episode % 256, step % 256, *noise], np.uint8).reshape(1, 2, 3)

    def unroll(self) -> dict[str, np.ndarray]:
        out = {}
        for name, f in self.spec.items():  # junk where nothing is promised
            out[name] = self.rng.integers(0, 2, f.shape).astype(f.dtype)
        for t in range(self.steps):
            for e in range(self.envs):
                episode, step = self.at[e]
                key = (self.life, e, episode)
                out["obs"][t, e] = self.frame(e, episode, step)
                out["obs/where"][t, e] = (self.life, e, episode, step)
                out["q_max"][t, e], out["q_taken"][t, e] = q_values(e, episode, step)
                out["valid"][t, e] = not self.reset_row[e]
                out["first"][t, e] = step == 0
                out["extra"][t, e] = (e, episode % 256, step % 256)
                if self.reset_row[e]:
                    self.reset_row[e], self.at[e] = False, [episode + 1, 0]
                    continue
                action, reward = int(self.rng.integers(1 << 40)), float(np.float32(self.rng.normal()))
                self.actions.setdefault(key, []).append(action)
                self.rewards.setdefault(key, []).append(reward)
                out["action"][t, e], out["reward"][t, e] = action, reward
                end = self.rng.random() < 1 / self.mean
                how = ["terminated", "truncated", "both"][self.rng.integers(3)] if end else ""
                out["terminated"][t, e] = how in ("terminated", "both")
                out["truncated"][t, e] = how in ("truncated", "both")
                self.at[e][1] += 1
                if end:
                    self.ends[key] = "truncated" if how == "truncated" else "terminated"
                    if self.same_step:
                        out["final/obs"][t, e] = self.frame(e, episode, step + 1)
                        out["final/obs/where"][t, e] = (self.life, e, episode, step + 1)
                        self.at[e] = [episode + 1, 0]
                    else:
                        self.reset_row[e] = True
        return out

    def items(self, n: int) -> int:
        """Items that are complete by now."""
        count = 0
        for key, rewards in self.rewards.items():
            waiting = self.reset_row[key[1]] and self.at[key[1]][0] == key[2]  # for the row with its final observation
            count += len(rewards) if key in self.ends and not waiting else max(0, len(rewards) - n)
        return count


def q_values(env: int, episode: int, step: int) -> tuple[float, float]:
    """(q_max, q_taken) of a step."""
    return float(np.sin(env + 7 * episode + 1.3 * step)), float(np.cos(env + 3 * episode + step))


def check_batch(
    batch: Batch, lives: dict[int, Counting], n: int, gamma: float, stack: int = 1, pad: str = "repeat"
) -> None:
    items = {name: tensor.numpy() for name, tensor in batch.items.items()}
    for i, (life, env, episode, step) in enumerate(items["obs/where"].tolist()):
        truth, key = lives[life], (life, env, episode)
        rewards, where = truth.rewards[key], f"item {i}: {key} step {step}"
        width = min(n, len(rewards) - step) if key in truth.ends else n
        ended = key in truth.ends and step + width == len(rewards)
        assert items["next/obs/where"][i].tolist() == [life, env, episode, step + width], where
        assert items["action"][i] == truth.actions[key][step], where
        assert items["extra"][i].tolist() == [env, episode % 256, step % 256], where
        expected = sum(gamma**k * rewards[step + k] for k in range(width))
        assert np.isclose(items["reward"][i], expected, rtol=1e-5, atol=1e-6), where
        discount = 0.0 if ended and truth.ends[key] == "terminated" else gamma**width
        assert np.isclose(items["discount"][i], discount, rtol=1e-6), where
        for name, last in (("obs", step), ("next/obs", step + width)):
            if stack == 1:
                assert np.array_equal(items[name][i], truth.frame(env, episode, last)), where
                continue
            frames = []
            for s in range(last - stack + 1, last + 1):
                frame = truth.frame(env, episode, max(s, 0))
                frames.append(frame if s >= 0 or pad == "repeat" else np.zeros_like(frame))
            assert np.array_equal(items[name][i], np.concatenate(frames)), where


def priority(truth: Counting, where: list[int], n: int, gamma: float) -> float | None:
    """|delta| by the actor's values; None where the table may not know the true bootstrap (same_step, truncated)."""
    life, env, episode, step = where
    key = (life, env, episode)
    rewards = truth.rewards[key]
    width = min(n, len(rewards) - step) if key in truth.ends else n
    ended = key in truth.ends and step + width == len(rewards)
    delta = sum(gamma**k * rewards[step + k] for k in range(width)) - q_values(env, episode, step)[1]
    if ended and truth.ends[key] == "truncated" and truth.same_step:
        return None
    if not (ended and truth.ends[key] == "terminated"):
        delta += gamma**width * q_values(env, episode, step + width)[0]
    return abs(delta)
