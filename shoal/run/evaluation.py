"""Adds an evaluator to any system's program."""

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

MAX_EVALUATION_SECONDS = 600.0  # seconds that a run may spend on the evaluation of what it ended with


def require_video(cfg: Any, how: Evaluation, apart: Call) -> None:
    """UsageError if evaluations are filmed and cannot be; ``apart`` says where environments are made."""
    if how.video:
        from shoal.policy.video import require_film

        apart(partial(require_film, cfg))


def add_evaluator(program: Program, system: Any, cfg: Any, how: Evaluation, run_dir: Path, whole: bool) -> None:
    """A role that reads the program's parameters and plays; ``whole``: each evaluation in one step (serial)."""
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
    system: Any, cfg: Any, how: Evaluation, run_dir: Path, report: Report, channel: str, seed: int, apart: Call
) -> Returns | None:
    """Evaluate what the run ended with in ``channel``, so that the best parameters are never older and worse.
    ``apart`` says where the environments are stepped. It ends after ``MAX_EVALUATION_SECONDS``. None: it was evaluated
    already, or has no parameters. Where the policy's other actions come to something else, their mean is in ``info``
    (``_play_both``)."""
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
    make_agent: Callable[[int], Agent], cfg: Any, how: Evaluation, params: Tensors, version: int, seed: int
) -> Returns:
    """Returns of the actions that are asked for. Of a policy that samples, ``info`` has the mean of the others too,
    ``sampled_mean`` or ``greedy_mean``, where the two differ. Both end together after ``MAX_EVALUATION_SECONDS``."""
    end = time.monotonic() + MAX_EVALUATION_SECONDS
    returns = _play(make_agent, cfg, how, params, version, seed)
    if len(returns) < MIN_EPISODES or not getattr(make_agent(seed), "samples", False):
        return returns
    other = replace(how, sampled=not how.sampled)
    others = _play(make_agent, cfg, other, params, version, seed, max(0.0, end - time.monotonic()))
    name = "sampled_mean" if other.sampled else "greedy_mean"
    if time.monotonic() < end and differ(returns, others):  # of what was cut short nobody can say
        returns.info[name] = sum(others) / len(others)
    return returns


def _play(
    make_agent: Callable[[int], Agent], cfg: Any, how: Evaluation, params: Tensors, version: int, seed: int,
    seconds: float = MAX_EVALUATION_SECONDS,
) -> Returns:  # fmt: skip
    agent = _loaded(make_agent, params, version, seed)
    return play(agent, cfg, how.episodes, seed, not how.sampled, how.envs, how.max_steps, seconds)


def _film_of(make_agent: Callable[[int], Agent], cfg: Any, how: Evaluation, run_dir: Path) -> Film | None:
    limit = episode_limit(cfg.env, cfg, how.max_steps)
    return partial(_film, make_agent, cfg, run_dir, not how.sampled, limit) if how.video else None


def _film(
    make_agent: Callable[[int], Agent], cfg: Any, run_dir: Path, greedy: bool, limit: int, params: Tensors,
    version: int, steps: int, seed: int,
) -> Generator[Played]:  # fmt: skip
    """Film an episode with the parameters of the evaluation at ``steps``, picture by picture."""
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
