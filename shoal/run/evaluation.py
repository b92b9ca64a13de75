"""Adds an evaluator to any system's program."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, fields, replace
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
from shoal.settings.flags import expect, ranged
from shoal.settings.ranges import Episodes, Natural


class _Default(int):
    """A number that can be told from the same number when somebody gives it."""


EPISODES = _Default(10)
ENVS = 256  # that are stepped together at most
MAX_EVALUATION_SECONDS = 600.0  # seconds that a run may spend on the evaluation of what it ended with


@dataclass(frozen=True)
class Evaluation:
    """How a run evaluates itself. every: environment steps between two evaluations; 0: never; episodes: in each;
    sampled: draw actions from the policy instead of taking the best; video: also film an episode of each; max_steps:
    agent steps after which an episode is given up, and counts as it is; 0: 27,000, or as many as the run's own time
    limit if those are more."""

    every: Natural = 0
    episodes: Episodes = EPISODES
    sampled: bool = False
    video: bool = False
    max_steps: Natural = 0

    def __post_init__(self) -> None:
        for name, hint in ranged(Evaluation).items():
            typed = expect(hint, value := getattr(self, name), f"'{name}' of an Evaluation")
            object.__setattr__(self, name, value if value is EPISODES else typed)
        given = {name: value for name, value in vars(self).items() if name != "every" and value != DEFAULTS[name]}
        if not self.every and (given or self.episodes is not EPISODES):
            said = ", ".join(f"{name}={value}" for name, value in (given or {"episodes": self.episodes}).items())
            raise UsageError(f"Evaluation({said}) expects every=N beside it: without, nothing is evaluated")

    @property
    def envs(self) -> int:
        """Environments that an evaluation steps together."""
        return min(self.episodes, ENVS)


DEFAULTS = {field.name: field.default for field in fields(Evaluation)}


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
    ``sampled_mean`` or ``greedy_mean``, where the two differ."""
    returns = _play(make_agent, cfg, how, params, version, seed)
    if len(returns) < MIN_EPISODES or not getattr(make_agent(seed), "samples", False):
        return returns
    other = replace(how, sampled=not how.sampled)
    others = _play(make_agent, cfg, other, params, version, seed)
    name = "sampled_mean" if other.sampled else "greedy_mean"
    if differ(returns, others):
        returns.info[name] = sum(others) / len(others)
    return returns


def _play(
    make_agent: Callable[[int], Agent], cfg: Any, how: Evaluation, params: Tensors, version: int, seed: int
) -> Returns:
    agent = _loaded(make_agent, params, version, seed)
    return play(agent, cfg, how.episodes, seed, not how.sampled, how.envs, how.max_steps, MAX_EVALUATION_SECONDS)


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
