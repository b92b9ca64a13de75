"""The roles of evolution strategies: workers play whole episodes with perturbed parameters and send what came of it;
the learner waits for all results of its task and sets the next one."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch

from shoal.api import (
    Arrays,
    Batch,
    Constant,
    Context,
    EnvBatch,
    EnvStep,
    Episode,
    Field,
    Learner,
    ParamsReader,
    ParamsWriter,
    Reader,
    Spec,
    Tensors,
    Writer,
)
from shoal.roles.evaluator import MAX_STEPS, WARN_AFTER_SECONDS
from shoal.types import State
from shoal.words import counted

log = logging.getLogger("shoal.roles")


class Population(Protocol):
    """Perturbed policies side by side: ``systems.es.perturbed.Population``."""

    def load(self, params: Tensors) -> None: ...
    def perturb(self, row: int, noise: np.ndarray, scale: float) -> None: ...
    def act(self, obs: Arrays, generator: np.random.Generator, action_noise: float = 0.0) -> np.ndarray: ...


def results_spec(pairs: int, statistics: Mapping[str, tuple[int, ...]]) -> Spec:
    """Return the fields of a message with the results of one block of ``pairs``. Its size does not depend on the size
    of the network.

    block: its number; index: of each pair's noise in the table; returns, lengths: of theta + sigma eps and theta -
    sigma eps; count and seen: number, sum and sum of squares of the observations whose ``statistics`` are kept
    (name -> shape).
    """
    spec = {
        "block": Field((1,), "int64", 0),
        "index": Field((pairs,), "int64", 0),
        "returns": Field((pairs, 2), "float32", 0),
        "lengths": Field((pairs, 2), "int32", 0),
    }
    if statistics:
        spec["count"] = Field((1,), "float64", 0)
    return spec | {f"seen/{name}": Field((1, 2, *shape), "float64", 0) for name, shape in statistics.items()}


class EvolutionWorker:
    """One step = the next of its ``blocks`` of ``pairs``: an episode with theta + sigma eps and one with theta - sigma
    eps for each pair. An environment whose episode ends begins the next that nobody has begun. One put.

    Noise and seeds follow from the task and the block alone, so that no result depends on who works it out, on the
    number of workers or on whether one of them was killed.

    total: blocks of a generation, over all workers; noise_std: sigma; evaluate_every: every so many tasks one block
    also plays an episode in each environment with theta itself, without a cap or noise of the actions (0: never), of at
    most ``limit`` steps; bonus: is taken off every step's reward.
    """

    def __init__(
        self,
        ctx: Context,
        env: EnvBatch,
        population: Population,
        results: Writer,
        params: ParamsReader,
        noise: Constant,
        *,
        size: int,
        pairs: int,
        blocks: Sequence[int],
        total: int,
        noise_std: float,
        action_noise: float = 0.0,
        evaluate_every: int = 0,
        bonus: float = 0.0,
        limit: int = MAX_STEPS,
    ) -> None:
        self.ctx, self.env, self.population, self.results, self.params = ctx, env, population, results, params
        self.table, self.size, self.pairs = noise.arrays["noise"], size, pairs
        self.blocks, self.total, self.noise_std = blocks, total, noise_std
        self.action_noise, self.evaluate_every, self.bonus = action_noise, evaluate_every, bonus
        self.limit = limit
        self.unfinished = False  # whether its block was left in the middle, because the run ends
        self.version, self.done = -1, 0  # the task, and how many of the blocks have been played in it
        self.task: dict[str, int] = {}

    def step(self) -> None:
        metrics = self.ctx.metrics
        metrics.enter("params")
        self._update_task()
        if self.done == len(self.blocks):
            return  # others have one block more
        block = self.blocks[self.done]
        metrics.enter("unroll")
        self.unfinished = False
        try:
            with self.results.slot(self.version) as out:
                self._play_block(block, out)
        except _Interrupted:  # the block is played again when the run goes on
            self.unfinished = True
            getattr(self.params, "unread", lambda: None)()  # of the serial runtime, which alone interrupts a step
            return
        self.done += 1

    def close(self) -> None:
        self.env.close()

    def state_dict(self) -> State:
        """Return the progress within its task."""
        version = max(self.version, self._resumed)  # it may be saved before it has a task
        return {"done": self.done, "version": version, "unfinished": self.unfinished}

    def load_state_dict(self, state: State) -> None:
        self.done, self._resumed = state["done"], state["version"]
        self.unfinished = state.get("unfinished", False)

    _resumed = -1

    def _update_task(self) -> None:
        if (new := self.params.latest(newer_than=self.version)) is not None:
            version, params = new
            if version != self._resumed:
                self.done = 0
            self.version, self._resumed = version, -1
            self.task = {name: int(params[f"task/{name}"]) for name in ("seed", "cap")}
            self.population.load(params)

    def _play_block(self, block: int, out: Arrays) -> None:
        generator = self._generator(block, 0)
        indices = generator.integers(0, len(self.table) - self.size + 1, self.pairs)
        out["block"][0], out["index"][:] = block, indices
        for name in out.keys() - {"block", "index", "returns", "lengths"}:
            out[name][...] = 0.0
        episodes = [(int(index), sign * self.noise_std) for index in indices for sign in (1.0, -1.0)]
        turn, rest = divmod(self.version, max(self.evaluate_every, 1))
        evaluated = self.evaluate_every and rest == 0 and turn % self.total == block
        unperturbed = self._evaluate(block) if evaluated else 0.0
        returns, lengths = self._play(episodes, generator, self.task["cap"], self.action_noise, out)
        out["returns"][...], out["lengths"][...] = returns.reshape(-1, 2), lengths.reshape(-1, 2)
        if evaluated:
            self.ctx.metrics.record("unperturbed_return", unperturbed)

    def _evaluate(self, block: int) -> float:
        """Return the mean return of one episode per environment with the unperturbed parameters; these episodes do not
        count as the run's."""
        episodes = [(0, 0.0)] * self.env.num_envs
        returns, lengths = self._play(episodes, self._generator(block, 1), self.limit, 0.0, None)
        if cut := np.count_nonzero(lengths >= self.limit):
            told = f"{cut} of {counted(len(lengths), 'episode')} did not end within {counted(self.limit, 'step')}"
            log.warning("the evaluation of the unperturbed policy: %s: their returns so far count", told)
        return float(np.mean(returns))

    def _generator(self, block: int, use: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox([self.task["seed"], self.version << 32 | block << 1 | use]))

    def _play(
        self,
        episodes: Sequence[tuple[int, float]],
        generator: np.random.Generator,
        cap: int,
        action_noise: float,
        out: Arrays | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Episodes with theta + scale * the noise at an index (``episodes``: index and scale of each), of at most
        ``cap`` steps (0: as long as they take): returns and lengths [episodes]. They count as the run's at the
        end, where there is ``out``. Raises ``_Interrupted`` where the run should end.

        An environment whose episode is cut off at the cap goes on unheard until that has ended, and is free then; all
        begin anew when none is heard."""
        metrics, env, played = self.ctx.metrics, self.env, Episodes(len(episodes), self.env.num_envs)
        steps, patience = 0, time.monotonic() + WARN_AFTER_SECONDS
        heard: list[Episode] = []
        while played.waiting:
            obs = env.reset(int(generator.integers(2**31)))
            for row in range(min(env.num_envs, played.waiting)):
                self._begin(row, episodes, played)
            shown = np.ones(env.num_envs, bool)  # whether what is seen is not the end of the episode before
            while (alive := played.number >= 0).any():
                if self.ctx.interrupted():
                    raise _Interrupted
                steps += 1
                if steps % 1_000 == 0 and time.monotonic() > patience and not heard:
                    patience = math.inf
                    log.warning(
                        "no episode of %s has ended after %s steps; a run with --max-episode-steps N, or --cap N, ends "
                        "them", env.spec.id, f"{steps:,}",
                    )  # fmt: skip
                metrics.enter("unroll")
                if out is not None and "count" in out:
                    _see(out, obs, alive & shown)
                metrics.enter("inference")
                action = self.population.act(obs, generator, action_noise)
                metrics.enter("env")
                step = env.step(action)
                metrics.enter("unroll")
                played.add(step, alive & step.valid, self.bonus)
                ended = step.terminated | step.truncated
                for row, episode in zip(np.flatnonzero(ended).tolist(), step.episodes, strict=True):
                    if alive[row]:
                        heard.append(episode)
                        played.end(row)
                    if played.waiting:
                        self._begin(row, episodes, played)
                for row in np.flatnonzero((played.number >= 0) & (played.length >= cap)).tolist() if cap else ():
                    length = int(played.length[row])
                    heard.append(Episode(float(played.total[row]) + self.bonus * length, length))
                    played.end(row)
                obs, shown = step.obs, ~ended if env.spec.autoreset == "next_step" else shown
        if out is not None:
            for each in heard:
                metrics.episode(*each)
            metrics.count("env_steps", int(played.lengths.sum()))
        return played.returns, played.lengths

    def _begin(self, row: int, episodes: Sequence[tuple[int, float]], played: Episodes) -> None:
        """Let an environment play the next of ``episodes``."""
        index, scale = episodes[played.begin(row)]
        self.population.perturb(row, self.table[index : index + self.size], scale)


class _Interrupted(Exception):
    """The run should end in the middle of a block."""


class Episodes:
    """Assignment of episodes to environments, and the results of those that have ended.

    number: of the episode that each environment plays, -1 for none [E]; length and total: of it so far, its steps and
    its rewards less the bonus. returns, lengths: of all episodes. waiting: how many have not begun.
    """

    def __init__(self, episodes: int, envs: int) -> None:
        self.waiting = episodes
        self.returns, self.lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
        self.number, self.length, self.total = np.full(envs, -1), np.zeros(envs, np.int64), np.zeros(envs)

    def begin(self, row: int) -> int:
        """Return the number of the next episode, and assign it to environment ``row``."""
        self.number[row] = number = len(self.returns) - self.waiting
        self.length[row] = self.total[row] = 0
        self.waiting -= 1
        return number

    def add(self, step: EnvStep, counted: np.ndarray, bonus: float) -> None:
        """Add one step of the environments that are ``counted``; ``bonus`` is subtracted from each reward."""
        self.length += counted
        self.total += (step.reward - bonus) * counted

    def end(self, row: int) -> None:
        """End the episode of environment ``row``."""
        number = self.number[row]
        self.returns[number], self.lengths[number] = self.total[row], self.length[row]
        self.number[row] = -1


def _see(out: Arrays, obs: Arrays, alive: np.ndarray) -> None:
    """Add the observations of the episodes that go on to a message's sums."""
    rows = alive.astype(np.float64)
    out["count"] += rows.sum()
    for name, sums in out.items():
        if name.startswith("seen/"):
            seen = obs[name[5:]].reshape(len(rows), -1).astype(np.float64)
            sums[0, 0] += (rows @ seen).reshape(sums.shape[2:])
            seen *= seen
            sums[0, 1] += (rows @ seen).reshape(sums.shape[2:])


class EvolutionMaster:
    """One step = one get of a block's results; with the last block of its task one ``Learner.update`` and one publish.

    Results of another task, or of a block that it has, are discarded: of a worker that was killed the successor plays
    all blocks of the task again.
    """

    def __init__(self, ctx: Context, learner: Learner, blocks: int, results: Reader, params: ParamsWriter) -> None:
        self.ctx, self.learner, self.blocks = ctx, learner, blocks
        self.results, self.params = results, params
        self.version = self.discarded = 0
        self.received: dict[int, Tensors] = {}

    def start(self) -> None:
        self.version = self.params.publish(self.learner.params())

    def step(self) -> None:
        metrics = self.ctx.metrics
        metrics.enter("batch")
        batch = self.results.get()
        block = int(batch.items["block"][0])
        if batch.versions != (self.version,) or block in self.received:
            self.discarded += 1
            return
        self.received[block] = {name: tensor.clone() for name, tensor in batch.items.items()}
        if len(self.received) < self.blocks:
            return
        metrics.enter("learn")
        joined = {name: torch.cat([self.received[i][name] for i in range(self.blocks)]) for name in batch.items}
        metrics.record_all(self.learner.update(Batch(joined)).metrics)
        metrics.record("discarded_results", self.discarded)
        self.received, self.discarded = {}, 0
        metrics.enter("publish")
        self.version = self.params.publish(self.learner.params())
        metrics.count("updates")

    def state_dict(self) -> State:
        received = {str(block): tensors for block, tensors in self.received.items()}
        return {"learner": self.learner.state_dict(), "version": self.version, "received": received,
                "discarded": self.discarded}  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        self.learner.load_state_dict(state["learner"])
        self.version, self.discarded = state["version"], state["discarded"]
        self.received = {int(block): tensors for block, tensors in state["received"].items()}
