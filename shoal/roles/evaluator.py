"""The evaluator: plays whole episodes with the newest parameters, while training goes on undisturbed."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from shoal.api import Agent, Context, EnvBatch, EnvironmentFailed, Episode, ParamsReader, Stateful, Tensors
from shoal.types import State, Values
from shoal.words import counted

log = logging.getLogger("shoal.roles")
WARN_AFTER_SECONDS = 30.0  # seconds without the end of an episode, after which an evaluation says so
MAX_STEPS = 27_000  # agent steps of an episode that is evaluated: 108,000 of Atari's frames (Hessel et al. 2018)


class Returns(list[float]):
    """Raw returns of episodes. ``info``: means of the numbers that the environment gave at their ends (``success``).
    ``unfinished``: how many of the ``asked`` episodes did not end: of those that were begun, the returns until then are
    among the returns. ``why``: one sentence that says so, "" where all have ended."""

    def __init__(self, episodes: Sequence[Episode] = (), unfinished: int = 0, asked: int = 0, within: str = "") -> None:
        super().__init__(float(e.ret) for e in episodes)
        self.unfinished, self.asked = unfinished, asked or len(self)
        self.why = ""
        if unfinished:
            missing = self.asked - len(self)
            self.why = f"{unfinished} of {counted(self.asked, 'episode')} did not end within {within}"
            self.why += f", and {missing} of them did not begin" if missing else ""
            self.why += ": their returns so far count"
        infos: dict[str, list[float]] = {}
        for episode in episodes:
            for name, value in episode.info.items():
                infos.setdefault(name, []).append(value)
        self.info = {name: float(np.mean(values)) for name, values in infos.items()}


class Episodes:
    """Plays ``episodes`` whole episodes, one vector step at a time. Each environment plays a number of episodes fixed
    beforehand, because taking the first episodes that end would favour short ones.

    An episode that has not ended after ``max_steps`` agent steps counts as it is. Its environment waits for the end, or
    until no other plays an episode that counts: then all begin anew, with other seeds, if episodes are left.

    episodes: for each environment, its episodes that count; complete once ``done``. unfinished: how many have no end.
    """

    def __init__(
        self, env: EnvBatch, agent: Agent, episodes: int, seed: int, greedy: bool = True, max_steps: int = MAX_STEPS
    ) -> None:
        self.env, self.agent, self.greedy, self.max_steps = env, agent, greedy, max_steps
        num = env.num_envs
        self.quota = [episodes // num + (i < episodes % num) for i in range(num)]
        self.episodes: list[list[Episode]] = [[] for _ in range(num)]
        self.unfinished, self._asked, self._within = 0, episodes, counted(max_steps, "step")
        self._seed, self._round = seed, 0
        self._steps, self._patience = 0, time.monotonic() + WARN_AFTER_SECONDS
        self._reset(seed)

    def _reset(self, seed: int) -> None:
        num = self.env.num_envs
        self._obs, self._first = self.env.reset(seed), np.ones(num, bool)
        self._state = self.agent.initial_state(num)
        self._age = np.zeros(num, np.int64)  # steps of the episode that each environment plays

    @property
    def done(self) -> bool:
        return all(len(e) >= n for e, n in zip(self.episodes, self.quota, strict=True))

    def step(self) -> None:
        """Act once in every environment."""
        self._steps += 1
        if self._steps % 1_000 == 0 and time.monotonic() > self._patience and not any(self.episodes):
            self._patience = math.inf
            log.warning(
                "evaluation: no episode of %s has ended after %s steps; a run with --max-episode-steps N ends them",
                self.env.spec.id, f"{self._steps:,}",
            )  # fmt: skip
        act = self.agent.act(self._obs, self._first, self._state, self.greedy)
        step = self.env.step(act.action)
        ended = step.terminated | step.truncated
        rows = np.flatnonzero(ended)
        if len(rows) != len(step.episodes):
            raise EnvironmentFailed(
                f"{self.env.spec.id} ended {counted(len(rows), 'episode')} but reported "
                f"{counted(len(step.episodes), 'return')}"
            )
        self._age += step.valid
        for row, episode in zip(rows, step.episodes, strict=True):
            if len(self.episodes[row]) < self.quota[row] and self._age[row] <= self.max_steps:
                self.episodes[row].append(episode)
        self._age[ended] = 0
        self._first = ended if self.env.spec.autoreset == "same_step" else ~step.valid
        self._obs, self._state = step.obs, act.state
        late = np.flatnonzero((self._age == self.max_steps) & step.valid)
        if len(late):
            so_far = self.env.so_far()
            for row in late:
                if len(self.episodes[row]) < self.quota[row]:
                    self.episodes[row].append(so_far[row])
                    self.unfinished += 1
        if len(late) or len(rows):
            left = [row for row, n in enumerate(self.quota) if len(self.episodes[row]) < n]
            if left and (self._age[left] >= self.max_steps).all():
                self._round += 1
                self._reset(evaluation_seed(self._seed, self._round))

    def play(self, seconds: float = math.inf) -> Returns:
        """Step until done, or for so many seconds, and return the raw returns."""
        end = time.monotonic() + seconds
        while not self.done:
            self.step()
            if time.monotonic() > end and not self.done:
                self._give_up(seconds)
        return self.flat()

    def _give_up(self, seconds: float) -> None:
        """Count the unfinished episodes with their returns so far, and start no more."""
        self.unfinished = self._asked - sum(map(len, self.episodes)) + self.unfinished
        self._within = f"{seconds:,.0f} s"
        for row, episode in enumerate(self.env.so_far()):
            if len(self.episodes[row]) < self.quota[row] and 0 < self._age[row] < self.max_steps:
                self.episodes[row].append(episode)
            self.quota[row] = len(self.episodes[row])

    def flat(self) -> Returns:
        """The raw returns of all environments in one list."""
        played = [e for episodes in self.episodes for e in episodes]
        return Returns(played, self.unfinished, self._asked, self._within)


class Results(Protocol):
    """Receives evaluations. ``add`` keeps the parameters unless earlier ones scored higher."""

    def add(
        self, steps: int, version: int, returns: list[float], params: Tensors, info: Mapping[str, float],
        unfinished: int,
    ) -> None: ...  # fmt: skip


Film = Callable[[Tensors, int, int, int], Generator[Any]]  # of parameters, their version, steps, and a seed


class EvaluatorRole:
    """Evaluates the newest parameters every ``every`` environment steps of the run; ``due`` says when. With ``film``,
    an episode with them is filmed after each evaluation.

    One step of the role is one vector step of an evaluation, or one picture, or, with ``whole``, all of it: in the
    serial runtime it then belongs to a single moment of the training, and an evaluation that is cut short is played
    again from its beginning when the run goes on. Each evaluation plays new episodes, because its seed is derived from
    this replica's seed and the environment step at which it began.
    """

    def __init__(
        self,
        ctx: Context,
        env: EnvBatch,
        agent: Agent,
        results: Results,
        params: ParamsReader,
        *,
        every: int,
        episodes: int,
        greedy: bool = True,
        whole: bool = False,
        film: Film | None = None,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self.ctx, self.env, self.agent, self.results, self.params = ctx, env, agent, results, params
        self.every, self.episodes, self.greedy, self.whole, self.film = every, episodes, greedy, whole, film
        self.max_steps = max_steps
        self._next = self._after(ctx.steps())
        self._now: Episodes | None = None
        self._filming: Generator[Any] | None = None
        self.unfinished = False

    def due(self) -> bool:
        """Return whether an evaluation has begun or should begin now."""
        return self._now is not None or self._filming is not None or self.ctx.steps() >= self._next

    def step(self) -> None:
        if self._filming is not None:
            self._shoot(self._filming)
            return
        if self._now is None:
            self._begin()
        assert self._now is not None
        with self.ctx.metrics.phase("evaluate"):
            self._now.step()
            while self.whole and not self._now.done and not self.ctx.interrupted():
                self._now.step()
        self.unfinished = self.whole and not self._now.done
        if self._now.done:
            returns, self._now = self._now.flat(), None
            if returns.why:
                log.warning("evaluation at %s steps: %s", f"{self._steps:,}", returns.why)
            self.results.add(self._steps, self._version, returns, self._params, returns.info, returns.unfinished)
            self.ctx.metrics.record("evaluation_return", float(np.mean(returns)))
            for name, value in returns.info.items():
                called = "info/return" if name == "return" else name  # another thing than the episodes' own
                self.ctx.metrics.record(f"evaluation_{called}", value)
            self._next = max(self._after(self._steps), self._after(self.ctx.steps()) - self.every)
            if self.film is not None:
                self._filming = self.film(self._params, self._version, self._steps, self._seed)
                while self.whole and self._filming is not None and not self.ctx.interrupted():
                    self._shoot(self._filming)

    def _shoot(self, pictures: Generator[Any]) -> None:
        """Film one more frame, if the episode has one."""
        with self.ctx.metrics.phase("film"):
            if next(pictures, None) is None:
                self._filming = None

    def close(self) -> None:
        if self._filming is not None:
            self._filming.close()  # a film that the end of the run cuts short is left out
        self.env.close()

    def state_dict(self) -> State:
        """When the next evaluation is due, and the agent's state; an evaluation in progress starts again."""
        agent = self._agent if self._now is not None else self._agent_state()
        return {"next": self._next, "agent": agent, "unfinished": self.unfinished}

    def load_state_dict(self, state: State) -> None:
        self._next, self.unfinished = state["next"], state.get("unfinished", False)
        if isinstance(self.agent, Stateful):
            self.agent.load_state_dict(state["agent"])

    def _agent_state(self) -> State | None:
        return self.agent.state_dict() if isinstance(self.agent, Stateful) else None

    def _begin(self) -> None:
        self._steps, self._agent = self.ctx.steps(), self._agent_state()
        latest = self.params.latest()
        assert latest is not None
        self._version, self._params = latest
        self.agent.load(self._params, self._version)
        self._seed = evaluation_seed(self.ctx.seed, self._steps)
        self._now = Episodes(self.env, self.agent, self.episodes, self._seed, self.greedy, self.max_steps)

    def _after(self, steps: int) -> int:
        """The smallest multiple of ``every`` that is larger than ``steps``."""
        return (steps // self.every + 1) * self.every


def evaluation_seed(seed: int, steps: int) -> int:
    """A seed below 2**31 for the evaluation at ``steps``."""
    return int(np.random.SeedSequence([seed, steps]).generate_state(1, np.uint32).item()) >> 1


def make_evaluator(
    make_env: Callable[[], EnvBatch],
    make_agent: Callable[[int], Agent],
    results: Results,
    options: Values,
    ctx: Context,
    params: ParamsReader,
) -> EvaluatorRole:
    """``make_agent`` takes the replica's seed; ``options`` are the evaluator's keywords."""
    return EvaluatorRole(ctx, make_env(), make_agent(ctx.seed), results, params, **options)
