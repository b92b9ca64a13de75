"""Evaluation of runs: an evaluator role during training, and a final evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from shoal.api import Agent, Tensors, UsageError, WiringError
from shoal.local.apart import Call
from shoal.policy.policy import MIN_EPISODES, differ, episode_limit, evaluation_envs, play
from shoal.program import Program
from shoal.records.evaluation_files import EvaluationFiles, video
from shoal.records.report import Report
from shoal.roles.evaluator import Episodes as Played, Film, Returns, evaluation_seed, make_evaluator
from shoal.settings.run_options import Evaluation as Evaluation
from shoal.topology.config import SystemConfig

MAX_EVALUATION_SECONDS = 600.0  # longest time of the final evaluation


def require_video(cfg: SystemConfig, how: Evaluation, apart: Call) -> None:
    """Raise UsageError if evaluations should be filmed but cannot be. ``apart`` calls functions where environments are
    made."""
    if how.video:
        from shoal.policy.video import require_film

        apart(partial(require_film, cfg))


def add_evaluator(
    program: Program, system: Any, cfg: SystemConfig, how: Evaluation, run_dir: Path, whole: bool
) -> None:
    """Add a role that reads the program's parameters and plays episodes. whole: each evaluation is one step (serial
    runtime)."""
    try:
        channel = program.policy_channel()
    except WiringError as error:
        raise UsageError(f"no evaluation while it trains: {error}") from None
    agent = partial(system.agent, cfg)
    options = dict(
        every=how.every, episodes=how.episodes, greedy=not how.sampled, whole=whole,
        film=_film_of(agent, cfg, how, run_dir), max_steps=episode_limit(cfg.env, cfg, how.max_steps),
    )  # fmt: skip
    program.role(
        "evaluator",
        partial(
            make_evaluator,
            partial(evaluation_envs, cfg, how.envs),
            agent,
            EvaluationFiles(run_dir, channel.name),
            options,
        ),
        on_failure="ignore",
        background=True,
        params=channel.reader(),
    )


def final_evaluation(
    system: Any, cfg: SystemConfig, how: Evaluation, run_dir: Path, report: Report, channel: str, seed: int, apart: Call
) -> Returns | None:
    """Evaluate the final parameters of ``channel``, so that the best parameters are never older and worse. Return the
    row of the evaluation, or None if they were evaluated already or the run has no parameters.

    ``apart`` calls functions where environments are stepped. The evaluation ends after ``MAX_EVALUATION_SECONDS``. If
    the policy's other kind of actions gives different returns, their mean is in ``info`` (``_play_both``).
    """
    results = EvaluationFiles(run_dir, channel)
    params = report.params.get(channel)
    if params is None or results.last() == report.steps:
        return None
    drawn, agent = evaluation_seed(seed, report.steps), partial(system.agent, cfg)
    returns: Returns = apart(partial(_play_both, agent, cfg, how, params, report.updates, drawn))
    results.add(report.steps, report.updates, returns, params, returns.info, returns.unfinished)
    if (film := _film_of(agent, cfg, how, run_dir)) is not None:
        apart(partial(_film_whole, film, params, report.updates, report.steps, drawn))
    return returns


def _play_both(
    make_agent: Callable[[int], Agent], cfg: SystemConfig, how: Evaluation, params: Tensors, version: int, seed: int
) -> Returns:
    """Return the returns of the requested kind of actions (greedy or sampled). If the policy samples and both kinds
    differ, ``info`` has the mean of the other kind, ``sampled_mean`` or ``greedy_mean``. Both together end after
    ``MAX_EVALUATION_SECONDS``."""
    end = time.monotonic() + MAX_EVALUATION_SECONDS
    returns = _play(make_agent, cfg, how, params, version, seed)
    if len(returns) < MIN_EPISODES or not getattr(make_agent(seed), "samples", False):
        return returns
    other = replace(how, sampled=not how.sampled)
    others = _play(make_agent, cfg, other, params, version, seed, max(0.0, end - time.monotonic()))
    name = "sampled_mean" if other.sampled else "greedy_mean"
    if time.monotonic() < end and differ(returns, others):  # an incomplete evaluation is not compared
        returns.info[name] = sum(others) / len(others)
    return returns


def _play(
    make_agent: Callable[[int], Agent], cfg: SystemConfig, how: Evaluation, params: Tensors, version: int, seed: int,
    seconds: float = MAX_EVALUATION_SECONDS,
) -> Returns:  # fmt: skip
    agent = _loaded(make_agent, params, version, seed)
    return play(agent, cfg, how.episodes, seed, not how.sampled, how.envs, how.max_steps, seconds)


def _film_of(make_agent: Callable[[int], Agent], cfg: SystemConfig, how: Evaluation, run_dir: Path) -> Film | None:
    limit = episode_limit(cfg.env, cfg, how.max_steps)
    return partial(_film, make_agent, cfg, run_dir, not how.sampled, limit) if how.video else None


def _film(
    make_agent: Callable[[int], Agent], cfg: SystemConfig, run_dir: Path, greedy: bool, limit: int, params: Tensors,
    version: int, steps: int, seed: int,
) -> Generator[Played]:  # fmt: skip
    """Film an episode with the parameters of the evaluation at ``steps``, yielding after each picture."""
    from shoal.policy.video import filming

    agent = partial(_loaded, make_agent, params, version)
    yield from filming(agent, cfg, video(run_dir, steps), seed, greedy, limit)


def _film_whole(film: Film, params: Tensors, version: int, steps: int, seed: int) -> None:
    for _ in film(params, version, steps, seed):
        pass


def _loaded(make_agent: Callable[[int], Agent], params: Tensors, version: int, seed: int) -> Agent:
    agent = make_agent(seed)
    agent.load(params, version)
    return agent
