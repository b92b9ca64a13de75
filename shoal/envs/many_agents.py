"""PettingZoo's parallel environments as vector environments: each agent of each game is a row, and one policy plays
all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from shoal.api import EnvironmentFailed, UsageError
from shoal.words import counted

from .one_by_one import number
from .types import Info, Nested, Space


def is_parallel(made: object) -> bool:
    """Return True if ``made`` has the methods of PettingZoo's ``ParallelEnv``."""
    return hasattr(made, "possible_agents") and callable(getattr(made, "observation_space", None))


def require_parallel(made: Any, env: str) -> None:
    """Raise UsageError for a PettingZoo environment in which agents take turns."""
    if hasattr(made, "agent_iter"):
        raise UsageError(
            f"environment {env!r} made one of PettingZoo's in which agents take turns; Shoal plays those in which all "
            "act at once: its module's parallel_env, or pettingzoo.utils.aec_to_parallel of it"
        )


class ManyAgents(VectorEnv[Any, Any, Any]):
    """``num`` rows with as many games as fit; each game has one row for each of its ``possible_agents``.

    An agent that has left a game or not yet joined it is ``absent`` (bool ``[num]``): its row repeats the last
    observation, and its next action is ignored. An agent that leaves without an end of its own is truncated. A game
    restarts at the step after all its agents have left, as in ``NEXT_STEP``. After ``limit`` steps (0: none) all agents
    are truncated.

    Raises UsageError if agents have different spaces, because they share a policy, and from ``reset`` if ``num`` is no
    multiple of the number of agents.
    """

    def __init__(self, first: Any, make: Callable[[], Any], num: int, env: str, limit: int = 0) -> None:
        self.agents, self.num_envs, self.id, self.limit = list(first.possible_agents), num, env, limit
        self.metadata = {**(getattr(first, "metadata", None) or {}), "autoreset_mode": AutoresetMode.NEXT_STEP}
        if not self.agents:
            raise UsageError(f"environment {env!r} names no possible_agents, so that nobody knows how many rows it has")
        self.single_observation_space = self._shared(first, "observation_space")
        self.single_action_space = self._shared(first, "action_space")
        self.observation_space = batch_space(self.single_observation_space, num)
        self.action_space = batch_space(self.single_action_space, num)
        self.games = [first, *(make() for _ in range(num // len(self.agents) - 1))]
        self.absent = np.zeros(num, np.bool_)
        self._rows: list[Nested] = [None] * num
        self._steps = [0] * len(self.games)
        self._away = np.zeros(num, np.bool_)  # agents that are not in their game and may join

    def _shared(self, game: Any, name: str) -> Space:
        """Return the space that all agents share. Raises UsageError if they differ."""
        spaces: dict[str, Space] = {agent: getattr(game, name)(agent) for agent in self.agents}
        first, other = self.agents[0], next((a for a in self.agents if spaces[a] != spaces[self.agents[0]]), None)
        if other is not None:
            raise UsageError(
                f"environment {self.id!r} gives the agents {first!r} and {other!r} a different {name} ({spaces[first]} "
                f"and {spaces[other]}), but one policy plays all: make them the same (SuperSuit pads them)"
            )
        return spaces[first]

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Nested, Info]:
        """Begin every game. seed: one for each row, of which a game uses its first."""
        agents = len(self.agents)
        if self.num_envs % agents:
            raise UsageError(
                f"a game of {self.id!r} has {counted(agents, 'agent')}, each a row: {self.num_envs} are no whole games"
            )
        infos: Info = {}
        for i in range(len(self.games)):
            infos = self._begin(i, infos, None if seed is None else int(np.ravel(seed)[(i * agents) % np.size(seed)]))
        return self._observations(), infos

    def step(self, actions: Nested) -> tuple[Nested, np.ndarray, np.ndarray, np.ndarray, Info]:
        rewards, ended, cut = np.zeros(self.num_envs), *np.zeros((2, self.num_envs), np.bool_)
        infos: Info = {}
        each = actions if isinstance(actions, np.ndarray) else list(iterate(self.action_space, actions))
        for i, game in enumerate(self.games):
            rows = self._rows_of(i)
            if self.absent[list(rows.values())].all():
                infos = self._begin(i, infos, None)
                continue
            playing = {agent: each[row] for agent, row in rows.items() if not self.absent[row]}
            seen, gained, terminated, truncated, told = game.step(playing)
            self._steps[i] += 1
            late = 0 < self.limit <= self._steps[i]
            for agent, row in rows.items():
                infos = self._look(row, agent, seen, told, infos)
                left = agent not in game.agents
                if agent in playing:
                    rewards[row] = number(gained.get(agent, 0.0))
                    ended[row] = bool(terminated.get(agent, False))
                    cut[row] = not ended[row] and (late or left or bool(truncated.get(agent, False)))
                    self.absent[row] = ended[row] or cut[row]
                elif self._away[row] and not left:  # the agent joins
                    self.absent[row] = late
                self._away[row] = left
        return self._observations(), rewards, ended, cut, infos

    def _rows_of(self, game: int) -> dict[str, int]:
        """Return the row of each agent of a game."""
        first = game * len(self.agents)
        return {agent: first + i for i, agent in enumerate(self.agents)}

    def _begin(self, i: int, infos: Info, seed: int | None) -> Info:
        seen, told = self.games[i].reset(seed=seed)
        self._steps[i] = 0
        if not seen:
            raise EnvironmentFailed(f"environment {self.id!r} began a game without any agent")
        for agent, row in self._rows_of(i).items():
            self._rows[row] = next(iter(seen.values()))  # for agents that have not joined
            self.absent[row] = self._away[row] = agent not in seen
            infos = self._look(row, agent, seen, told, infos)
        return infos

    def _look(self, row: int, agent: str, seen: Any, told: Any, infos: Info) -> Info:
        if agent in seen:
            self._rows[row] = seen[agent]
        return self._add_info(infos, told[agent], row) if told and told.get(agent) else infos

    def _observations(self) -> Nested:
        space = self.single_observation_space
        empty: Nested = create_empty_array(space, self.num_envs)
        return concatenate(space, self._rows, empty)

    def close(self, **kwargs: Any) -> None:
        """Close every game."""
        for game in self.games:
            game.close()
