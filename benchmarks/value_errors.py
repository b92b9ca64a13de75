"""How exact action values must be on toy text, by discount: the exact score of policies that are greedy for values with
errors. No learning: value iteration on the tasks' own models.

    python benchmarks/value_errors.py

Each number is the mean return within the task's time limit (no discount) of the policy that is greedy for the optimal
values of a discount plus Gaussian errors: the mean of 15 draws, and the worst of them.
"""

from __future__ import annotations

from statistics import mean

import gymnasium as gym
import numpy as np
from common import table

TASKS = {"FrozenLake-v1": 100, "FrozenLake8x8-v1": 200, "Taxi-v4": 200}  # time limits
DISCOUNTS = (0.98, 0.99, 0.995, 0.999)
ERRORS = (0.0, 0.001, 0.002, 0.003, 0.005)  # standard deviations
DRAWS = 15


def model(env: gym.Env) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the probabilities of next states [S, A, S] (none after an end), mean rewards [S, A] and the probabilities
    of first states [S]."""
    told = env.unwrapped.P  # type: ignore[attr-defined]
    states, actions = len(told), len(told[0])
    following, reward = np.zeros((states, actions, states)), np.zeros((states, actions))
    for s in range(states):
        for a in range(actions):
            for probability, after, r, ends in told[s][a]:
                reward[s, a] += probability * r
                following[s, a, after] += 0.0 if ends else probability
    return following, reward, env.unwrapped.initial_state_distrib  # type: ignore[attr-defined]


def optimal(following: np.ndarray, reward: np.ndarray, discount: float) -> np.ndarray:
    """Return the optimal action values [S, A]."""
    value = np.zeros(len(reward))
    while True:
        q = reward + discount * (following @ value)
        if np.abs(q.max(1) - value).max() < 1e-10:
            return q
        value = q.max(1)


def score(following: np.ndarray, reward: np.ndarray, first: np.ndarray, policy: np.ndarray, limit: int) -> float:
    """Return the mean return of ``policy`` (int [S]) within ``limit`` steps."""
    rows, value = np.arange(len(policy)), np.zeros(len(policy))
    for _ in range(limit):
        value = reward[rows, policy] + following[rows, policy] @ value
    return float(first @ value)


def main() -> None:
    rows = []
    for task, limit in TASKS.items():
        following, reward, first = model(gym.make(task))
        for discount in DISCOUNTS:
            q, rng, cells = optimal(following, reward, discount), np.random.default_rng(0), []
            for error in ERRORS:
                noisy = [q + rng.normal(0.0, error, q.shape) for _ in range(DRAWS if error else 1)]
                scores = [score(following, reward, first, values.argmax(1), limit) for values in noisy]
                cells.append(f"{mean(scores):.3f} ({min(scores):.3f})")
            rows.append([task, f"{discount:g}", *cells])
    print(table(["task", "discount", *(f"error {error:g}" for error in ERRORS)], rows))


if __name__ == "__main__":
    main()
