"""Random network distillation: a reward bonus for rarely seen observations, for any system.

Burda et al. 2018, "Exploration by Random Network Distillation".
"""

from __future__ import annotations

import numpy as np

from shoal.api import Arrays, EnvBatch, EnvSpec, EnvStep, Episode

UNITS, OUTPUTS = 128, 64  # units of the hidden layer, and outputs, of both networks
# Adam's learning rate; steps of all environments between two gradient steps (section 3, appendix)
RATE, TRAIN_PERIOD = 1e-4, 8
BETAS, EPSILON = (0.9, 0.999), 1e-8
GAMMA = 0.99  # discount of the bonus's return, whose standard deviation is its unit (section 2.4)
CLIP = 5.0  # bound of normalised numbers (section 2.4)
SIDE = 12  # pixels: images are averaged down to at most this many along each side


class Novelty:
    """Adds ``weight`` times a novelty bonus to the training reward; ``Episode.ret`` stays raw.

    The bonus of a step is the error of a trained network in predicting a fixed random one at the next observation,
    which is large for rarely seen observations. It is divided by the running standard deviation of its own discounted
    return (the quotient is at most ``CLIP``, and 0 while that deviation is 0) and multiplied by that of the reward's
    (by 1 while that is 0), so that ``weight`` has the same meaning for any size of rewards. The weight falls linearly
    to 0 over ``steps`` of each environment (0: it is constant), because a permanent bonus would change which policy is
    best. Each actor has its own networks. As the bonus is part of the only reward that systems know, it ends with the
    episode, unlike in section 2.3.
    """

    def __init__(self, inner: EnvBatch, weight: float, steps: int = 0) -> None:
        self.inner, self.spec, self.num_envs = inner, inner.spec, inner.num_envs
        self._weight, self._fall = weight, 1.0 / steps if steps else 0.0
        self._features = Features(inner.spec)
        self._same = inner.spec.autoreset == "same_step"
        self._begin()
        self._networks: Distillation | None = None

    def reset(self, seed: int) -> Arrays:
        obs = self.inner.reset(seed)
        self._networks = Distillation(self._features.size, seed)
        self._begin()
        self._features.reset()
        self._features(obs)
        return obs

    def _begin(self) -> None:
        self._steps = 0
        self._returns, self._scales = np.zeros((2, self.num_envs)), (Moments(()), Moments(()))  # of reward and bonus

    def step(self, action: np.ndarray) -> EnvStep:
        step = self.inner.step(action)
        weight = self._weight * max(0.0, 1.0 - self._steps * self._fall)
        self._steps += 1
        if not weight:
            return step
        assert self._networks is not None
        ended = step.terminated | step.truncated
        seen = self._features(step.obs)
        if self._same and ended.any():
            assert step.final_obs is not None
            seen[ended] = self._features({k: v[ended] for k, v in step.final_obs.items()})
        error = self._networks(seen, step.valid)
        self._returns = self._returns * GAMMA + np.stack((step.reward, error)) * step.valid
        for scale, returns in zip(self._scales, self._returns, strict=True):
            scale.update(returns[step.valid])
        self._returns[0, ended] = 0.0
        reward, own = (float(scale.deviation()) for scale in self._scales)
        told = (
            np.minimum(error / own, CLIP) if own > EPSILON else np.zeros_like(error)
        )  # one that never varies tells nothing
        bonus = weight * told * (reward or 1.0) * step.valid
        return step._replace(reward=step.reward + bonus.astype(np.float32))

    def so_far(self) -> list[Episode]:
        return self.inner.so_far()

    def close(self) -> None:
        self.inner.close()


class Moments:
    """Running mean and variance of rows [N, *shape]."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean, self.var, self.count = np.zeros(shape), np.zeros(shape), 0

    def update(self, rows: np.ndarray) -> None:
        if not len(rows):
            return
        total = self.count + len(rows)
        share, delta = len(rows) / total, rows.mean(0) - self.mean
        self.var = self.var * (1 - share) + rows.var(0) * share + delta**2 * share * (1 - share)
        self.mean, self.count = self.mean + delta * share, total

    def deviation(self) -> np.ndarray:
        out: np.ndarray = np.sqrt(self.var)
        return out


class Features:
    """Converts observations to rows [E, size]: vectors and the newest frame of images (averaged down) normalised by
    running statistics, integers one-hot."""

    def __init__(self, spec: EnvSpec) -> None:
        self._leaves = {k: o for k, o in spec.observations.items() if o.kind != "mask"}
        self._frames = {k: o.shape[0] // spec.stack for k, o in self._leaves.items() if o.kind == "image"}
        self.size = 0
        for name, leaf in self._leaves.items():
            if leaf.kind == "one_hot":
                self.size += sum(leaf.size)
            elif leaf.kind == "image":
                self.size += _small(np.zeros((1, *leaf.shape), np.uint8), self._frames[name]).shape[1]
            else:
                self.size += int(np.prod(leaf.shape))
        self.reset()

    def reset(self) -> None:
        self._moments: dict[str, Moments] = {}

    def __call__(self, obs: Arrays) -> np.ndarray:
        parts = []
        for name, leaf in self._leaves.items():
            array = obs[name]
            if leaf.kind == "one_hot":
                begins = np.cumsum((0, *leaf.size[:-1]))
                hot = np.zeros((len(array), sum(leaf.size)), np.float32)
                np.put_along_axis(hot, array.reshape(len(array), -1) + begins, 1.0, 1)
                parts.append(hot)
                continue
            rows = _small(array, self._frames[name]) if leaf.kind == "image" else array.reshape(len(array), -1)
            moments = self._moments.setdefault(name, Moments((rows.shape[1],)))
            moments.update(rows)
            spread = moments.deviation() + EPSILON
            parts.append(np.clip((rows - moments.mean) / spread, -CLIP, CLIP).astype(np.float32))
        return np.concatenate(parts, 1)


def _small(images: np.ndarray, channels: int) -> np.ndarray:
    """Return the newest ``channels`` of images [E, C, H, W], averaged over blocks, as [E, numbers] from 0 to 1."""
    newest = images[:, -channels:].mean(1) / 255.0
    count, height, width = newest.shape
    high, wide = -(-height // SIDE), -(-width // SIDE)
    padded = np.pad(newest, ((0, 0), (0, -height % high), (0, -width % wide)))
    blocks: np.ndarray = padded.reshape(count, padded.shape[1] // high, high, padded.shape[2] // wide, wide)
    small: np.ndarray = blocks.mean((2, 4)).reshape(count, -1)
    return small


class Distillation:
    """A fixed random network, and one trained to predict it by a step of Adam every ``TRAIN_PERIOD`` batches."""

    def __init__(self, size: int, seed: int) -> None:
        rng = np.random.default_rng([seed, 0x52_4E_44])
        shapes = ((size, UNITS), (UNITS,), (UNITS, OUTPUTS), (OUTPUTS,))
        self.fixed, self.learned = (
            [rng.standard_normal(s, np.float32) * np.float32(np.sqrt(2 / s[0]) if len(s) == 2 else 0.5) for s in shapes]
            for _ in range(2)
        )
        self._averages = [(np.zeros_like(p), np.zeros_like(p)) for p in self.learned]
        self._waiting: list[np.ndarray] = []  # rows of the newest batches that were not yet trained on
        self._batches = self._steps = 0

    def __call__(self, rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the mean squared error [E] at rows [E, size], and train on the rows where ``counts`` (bool [E]) is
        True."""
        error: np.ndarray = np.square(self._difference(rows)[1]).mean(1)
        self._waiting.append(rows[counts])
        self._batches += 1
        if self._batches % TRAIN_PERIOD == 0:
            self._learn(np.concatenate(self._waiting))
            self._waiting = []
        return error

    def _difference(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the trained network's hidden units, and the difference between its outputs and the fixed network's."""
        (w1, b1, w2, b2), (v1, c1, v2, c2) = self.fixed, self.learned
        hidden = np.maximum(rows @ v1 + c1, 0)
        return hidden, hidden @ v2 + c2 - np.maximum(rows @ w1 + b1, 0) @ w2 - b2

    def _learn(self, rows: np.ndarray) -> None:
        if not len(rows):
            return
        hidden, difference = self._difference(rows)
        by_out = difference * np.float32(2 / (OUTPUTS * len(rows)))
        by_hidden = (by_out @ self.learned[2].T) * (hidden > 0)
        self._descend([rows.T @ by_hidden, by_hidden.sum(0), hidden.T @ by_out, by_out.sum(0)])

    def _descend(self, gradients: list[np.ndarray]) -> None:
        self._steps += 1
        step = RATE * np.sqrt(1 - BETAS[1] ** self._steps) / (1 - BETAS[0] ** self._steps)
        for p, gradient, (first, second) in zip(self.learned, gradients, self._averages, strict=True):
            first += (1 - BETAS[0]) * (gradient - first)
            second += (1 - BETAS[1]) * (gradient * gradient - second)
            p -= np.float32(step) * first / (np.sqrt(second) + EPSILON)
