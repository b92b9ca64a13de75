"""Self-play: every round trains against a frozen copy of the policy of the round before. The game is Nim."""

import functools
import sys
from pathlib import Path

import gymnasium as gym

import shoal

STONES, ROUNDS = 21, 3


class Nim(gym.Env):
    """Both take one to three stones in turn, and whoever takes the last one wins. Return: 1 is won, -1 is lost."""

    observation_space = gym.spaces.Discrete(STONES + 1)  # stones that are left
    action_space = gym.spaces.Discrete(3)

    def __init__(self, opponent=None):
        self.opponent = None if opponent is None else shoal.load(opponent, env=Nim)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = STONES
        if self.np_random.random() < 0.5:
            self.answer()
        return self.left, {}

    def answer(self):
        """The opponent takes some: at random without a policy."""
        taken = self.np_random.integers(3) if self.opponent is None else self.opponent.act(self.left, greedy=False)
        self.left = max(0, self.left - 1 - int(taken))

    def step(self, action):
        self.left = max(0, self.left - 1 - int(action))
        if self.left == 0:
            return 0, 1.0, True, False, {}
        self.answer()
        return self.left, -float(self.left == 0), self.left == 0, False, {}


if __name__ == "__main__":
    folder, before = Path(sys.argv[2]), None
    for number in range(ROUNDS):
        env = Nim if before is None else functools.partial(Nim, before)
        run = shoal.train(
            "recurrent-ppo",
            env=env,
            steps=int(sys.argv[1]),
            init_from=before,
            run_dir=folder / str(number),
        )
        before = folder / f"{number}.safetensors"
        run.policy().save(before)
        against_random = shoal.evaluate(shoal.load(before, env=Nim), Nim, episodes=200)
        print(f"round {number}: {sum(against_random) / 200:.2f} against a random player")
