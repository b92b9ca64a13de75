"""Run: a finished or running training on disk, and functions that open its policy."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np

from shoal import own_code
from shoal.api import Tensors, UsageError
from shoal.envs import given, is_given, require_again
from shoal.paths import fixed, require_path, shown
from shoal.policy import Policy
from shoal.records.damage import read_json, reading, require_run
from shoal.records.evaluation_files import BEST
from shoal.records.formats import check_format
from shoal.records.metric_files import read_curve
from shoal.records.param_files import load_params
from shoal.records.report import Report
from shoal.records.run_dir import read_report
from shoal.roles.evaluator import Returns
from shoal.run.population.training import best_member, is_population
from shoal.run.trust import check as check_trust
from shoal.runtime.interrupts import EXIT_CODES
from shoal.settings.arguments import explains_arguments, needs_as_in
from shoal.settings.config import build, coerce_all
from shoal.settings.flags import choice, short_name, unknown
from shoal.settings.other_names import instead
from shoal.settings.other_python_names import OF_RUN
from shoal.systems import taken_for
from shoal.types import Values
from shoal.untrusted import RUN_FORMAT, brief, excerpt, parse_json, require_plain
from shoal.words import counted
from shoal.zoo import is_zoo, located


@dataclass(repr=False)
class Run:
    """A run on disk.

    config: the values it was run with; report: how it ended (None while it runs); system: the name it was started by;
    channel: the params channel of its policy (None: the only one); changes: settings that changed when it was resumed,
    each with its ``steps``; init_from: source of its initial parameters (None: drawn); trusted: whether code that it
    names may run (``run.trust``).
    """

    path: Path
    system: str
    config: Values
    report: Report | None = None
    channel: str | None = None
    changes: list[Values] = field(default_factory=list)
    init_from: str | None = None
    trusted: bool = False

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, trust: bool = False) -> Run:
        """Open the run in a directory that ``train`` made; for a population, that of its best member. Raises UsageError
        if it contains links, which may lead elsewhere, unless ``trust`` is true (which then holds for ``policy``
        too)."""
        require_path(path, "shoal.Run.open")
        if is_saved(path):
            raise UsageError(f"'{path}' is a saved policy, not the directory of a run: shoal.load opens it")
        path = fixed(path)
        if not path.is_dir():
            raise UsageError(f"no such run directory: '{shown(path)}'{taken_for('run', path.name)}")
        require_run(path)
        require_plain(path, trust)
        if is_population(path):
            path = best_member(path)
        facts = read_json(path / "config.json", "run", ("system", "config"))
        check_config(path / "config.json", facts)
        return cls(
            path, facts["system"], facts["config"], read_report(path), facts.get("policy"), facts.get("changes", []),
            facts.get("init_from"), trusted=trust,
        )  # fmt: skip

    if not TYPE_CHECKING:  # hidden from type checkers, which should report unknown attributes

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"a run has no attribute '{name}'{instead(OF_RUN, name)}")

    def __fspath__(self) -> str:
        """Return its directory, so that a run is accepted wherever a path is, as in ``shoal.resume(run)``."""
        return str(self.path)

    def __repr__(self) -> str:
        how = (
            "running, or killed"
            if self.report is None
            else f"{counted(self.report.steps, 'step')} (ended: {self.report.reason})"
        )
        return f"<Run {shown(self.path)!r}: {short_name(self.system)} on {self.config['env']}, {how}{self._gained}>"

    @property
    def ending(self) -> str:
        """Return how it ended, in words."""
        if self.report is None:
            return "running, or killed"
        return f"{self.report.reason}, {counted(self.report.steps, 'step')}{self._gained}"

    @property
    def _gained(self) -> str:
        score = self.report.episode_return if self.report is not None else math.nan
        return "" if math.isnan(score) else f", return {score:.4g}"

    def metrics(self) -> dict[str, np.ndarray]:
        """Return every recorded metric as a column, float64 [rows], by name: ``steps``, ``seconds``, ``episode_return``
        and those in docs/metrics.md. Unknown values are nan. Raises UsageError if the run has no metrics."""
        rows = read_curve(self.path)
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}

    def frame(self) -> Any:
        """Return ``metrics`` as a pandas DataFrame, or a polars one if pandas is not installed. Raises UsageError if
        neither is installed."""
        for library in ("pandas", "polars"):
            if importlib.util.find_spec(library) is not None:
                return importlib.import_module(library).DataFrame(self.metrics())
        raise UsageError("a DataFrame needs pandas or polars (pip install pandas); run.metrics() gives plain columns")

    def plot(self, out: str | Path | None = None, x: str = "both") -> Any:
        """Return the learning curve as a matplotlib figure, drawn as by ``shoal plot``. A notebook shows it.

        x: ``steps``, ``seconds`` or ``both``. out: a file that it is also written to (.png, .svg or .pdf). Raises
        UsageError without the extra ``plot``, or if no episode has ended.
        """
        from shoal.analysis.curves import grouped
        from shoal.analysis.plot import AXES, draw

        choice("x", x, (*AXES, "both"))
        return draw(grouped([self]), None if out is None else Path(out), x)

    def report_html(self) -> str:
        """Return the run as one self-contained HTML page, as ``shoal report`` writes it. Raises UsageError without the
        extra ``watch``."""
        from shoal.watch.report import html

        return html([self.path])

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the run's figures, and its program with current or final activity."""
        from shoal.watch.report import card

        return card(self.path)

    @explains_arguments
    def evaluate(
        self, episodes: int = 20, seed: int = 0, greedy: bool = True, envs: int = 8, which: str = "last"
    ) -> Returns:
        """Play whole episodes with the run's policy and return their returns. See ``Policy.evaluate``, and ``policy``
        for ``which``."""
        return self.policy(which=which).evaluate(episodes, seed, greedy, envs)

    @property
    def exit_code(self) -> int:
        """Return the exit code of a command for this run: that of the signal that ended it, or 0."""
        return EXIT_CODES.get(self.report.reason, 0) if self.report is not None else 0

    def policy(self, seed: int = 0, which: str = "last", *, trust: bool = False, env: Any = None) -> Policy:
        """Return the policy with the run's ``last`` parameters, or with the ``best`` of its own evaluations.

        trust: import its system and environment even if they are neither Shoal's, nor registered, nor known from a
        training of this user; otherwise UsageError is raised. env: the class or function that makes its environment, if
        that was given in Python and the run was opened again.
        """
        from shoal import systems

        if isinstance(seed, str):
            raise UsageError(f"run.policy takes the seed first, found {seed!r}: run.policy(which={seed!r})")
        if which not in ("last", "best"):
            raise unknown("value", which, ("last", "best"), "which")
        path = self.path if which == "last" else self.path / BEST
        if which == "best" and not (path / "params.json").is_file():
            raise UsageError(f"'{shown(self.path)}' holds no best parameters: it was trained without --eval-every")

        check_trust(self.path, self.system, self.config, trust or self.trusted)
        own_code.forget_edited()
        system, values = systems.load(self.system), with_environment(self.path, self.config, env)
        cfg = build(system.Config, coerce_all(system.Config, values, str(self.path / "config.json")))
        version, params = load_params(path, self.channel)
        return Policy(system, cfg, params, version, seed)


def check_config(file: Path, facts: Values) -> None:
    """Raise ShoalError unless the ``facts`` of a config.json have the expected types."""
    with reading(file):
        for name, kind in (("system", str), ("config", dict), ("origins", dict), ("preset", str), ("actors", int)):
            if name in facts and not isinstance(facts[name], kind):
                raise TypeError(f"'{name}' is {brief(facts[name])}")
        names = [facts["config"]["env"], facts.get("policy") or "", facts.get("init_from") or "", facts["system"]]
        if not all(isinstance(name, str) and "\0" not in name for name in names):
            raise TypeError("'policy', 'env', 'init_from' or 'system' is no name")
        if not all(isinstance(origin, str) for origin in facts.get("origins", {}).values()):
            raise TypeError(f"'origins' holds {brief(facts['origins'])}")
        for change in facts.get("changes", []):
            pairs = list(change["settings"].values())
            if type(change["steps"]) is not int or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
                raise TypeError(f"'changes' holds {brief(change)}")


def with_environment(path: Path, config: Mapping[str, Any], env: Any) -> Values:
    """Return the values in ``config``, which was read from ``path``, with the environment ``env`` that was given again
    (None: use the one in ``config``). Raises UsageError if it is needed and missing, or given and not needed."""
    was = config.get("env", "")
    if env is None:
        if isinstance(was, str):
            require_again(was)
        return dict(config)
    if not is_given(str(was)):
        raise UsageError(f"env is for what was trained in an environment given in Python; that of '{path}' is {was}")
    return {**config, "env": given(env)}


@needs_as_in("shoal.evaluate('runs/NAME', episodes=20)")
@explains_arguments
def evaluate(
    run: str | Path | Run | Policy,
    env: Any = None,
    *,
    episodes: int = 20,
    seed: int = 0,
    greedy: bool = True,
    envs: int = 8,
    which: str = "last",
    trust: bool = False,
    max_steps: int = 0,
) -> Returns:
    """Play whole episodes with a policy, a run's policy or a saved one (a file, ``zoo:NAME``), as ``shoal eval`` does,
    and return their raw returns. See ``Policy.evaluate``, also for ``max_steps``; ``which`` and ``trust`` are as in
    ``Run.policy``.

    env: None: the environment of the training; else a name, a class or a function that makes it, or an existing
    ``gymnasium.Env`` with the same observations and actions. An existing one is not closed and is the only environment.
    """
    if isinstance(run, Policy):
        policy = run
    else:
        require_path(run, "shoal.evaluate")
        source = run if isinstance(run, Run) or is_saved(run) else Run.open(run, trust=trust)
        config = source.config if isinstance(source, Run) else _saved_facts(source)["config"]
        again = is_given(str(config.get("env", ""))) and not isinstance(env, gym.Env)
        policy = open_policy(source, which, trust, env if again else None).policy
        env = None if again else env
    if isinstance(env, gym.Env):
        made, envs = env, 1
        env = lambda: _Open(made)  # noqa: E731
    if env is not None:
        policy = policy.within(given(env))
    return policy.evaluate(episodes, seed, greedy, envs, max_steps)


def is_saved(source: str | os.PathLike[str]) -> bool:
    """Return True if ``source`` is a saved policy, a file or ``zoo:NAME``, rather than a run's directory."""
    return is_zoo(source) or Path(source).is_file()


class Source(NamedTuple):
    """A policy and its source. system: the name it was trained by; name: of the run or, without its suffix, of the
    file; changes: of the run's settings, as ``Run.changes``."""

    policy: Policy
    system: str
    name: str
    changes: list[Values]


def open_policy(source: str | Path | Run, which: str = "last", trust: bool = False, env: Any = None) -> Source:
    """Open the policy of a run, of a file of ``Policy.save`` or of the zoo (``zoo:NAME``). Other arguments are as in
    ``Run.policy``. Raises UsageError if there is no such policy."""
    if isinstance(source, Run) or not is_saved(source):
        run = source if isinstance(source, Run) else Run.open(source, trust=trust)
        return Source(run.policy(which=which, trust=trust, env=env), run.system, run.path.name, run.changes)
    if which != "last":
        raise UsageError(f"'{source}' is one saved policy: only a run has its '{which}' parameters beside the last")
    policy = load(source, trust=trust, env=env)
    return Source(policy, policy.cfg.system(), located(source).stem, [])


class _Open(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that the caller owns and closes."""

    def close(self) -> None: ...


@needs_as_in("shoal.load('runs/NAME')")
@explains_arguments
def load(file: str | os.PathLike[str], seed: int = 0, *, trust: bool = False, env: Any = None) -> Policy:
    """Return the policy from a file that ``Policy.save`` wrote, from the zoo (``zoo:NAME``), or with the last
    parameters of a run or of its directory.

    seed: of the actions that it draws. trust, env: as in ``Run.policy``, because its system is imported, and its
    environment if it is the user's. Raises UsageError for any other file.
    """
    from shoal import systems

    require_path(file, "shoal.load")
    if not is_saved(file) and Path(file).is_dir():
        return Run.open(file, trust=trust).policy(seed, trust=trust, env=env)
    facts, file = _saved_facts(file), fixed(located(file))
    check_trust(file, facts["system"], facts["config"], trust)
    system = systems.load(facts["system"])
    with reading(file):
        version = int(facts["version"])
        cfg = build(system.Config, coerce_all(system.Config, with_environment(file, facts["config"], env), str(file)))
    return Policy(system, cfg, _saved_params(file), version, seed)


@contextlib.contextmanager
def _saved(file: Path) -> Iterator[Any]:
    """Yield an opened file of tensors. Raises UsageError for any other file."""
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        raise UsageError(f"no such file: '{shown(file)}'{taken_for('policy', file.name)}")
    try:
        with safe_open(file, "pt") as opened:
            yield opened
    except (SafetensorError, OSError, ValueError) as error:
        raise UsageError(f"'{file}' is no safetensors file, or damaged: {excerpt(error)}") from None


def _saved_params(file: Path) -> Tensors:
    with _saved(file) as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def _saved_facts(file: str | os.PathLike[str]) -> Values:
    """Return the facts that ``Policy.save`` wrote beside the parameters. Raises UsageError for any other file."""
    file = fixed(located(file))
    with _saved(file) as opened:
        facts = parse_json((opened.metadata() or {}).get("shoal", "{}"))
    if not isinstance(facts, dict) or not {"format", "system", "config", "version"} <= facts.keys():
        raise UsageError(f"'{shown(file)}' holds no policy: expected a file that Policy.save wrote")
    check_format(file, facts, RUN_FORMAT)
    check_config(file, facts)
    return facts
