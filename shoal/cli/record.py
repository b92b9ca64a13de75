"""shoal record: whole episodes of a run's policy, of a function or of a person, as a Minari data set; and what is in
one."""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from shoal import own_code
from shoal.api import MASK, ShoalError, UsageError
from shoal.demonstrations.episodes import Episode, read
from shoal.demonstrations.recording import ID, play, write
from shoal.envs import Codec, EnvOptions, training_reward
from shoal.paths import fixed, shown
from shoal.run.run import is_saved, open_policy
from shoal.settings.config import default_values, refuse_foreign
from shoal.settings.flags import Groups, coerce, divide, expect, flag_name, options, parse_flags, ranged, split
from shoal.settings.ranges import Episodes, Natural
from shoal.types import Values
from shoal.words import counted

KEYBOARD = "keyboard"
FLAGS: dict[str, object] = {
    "out": str, "episodes": Episodes, "seed": Natural, "env": str, "sampled": bool, "best": bool, "keys": list,
    "noop": Natural, "wait": bool, "list": str, "show": str, "episode": Natural,
    "trust": bool,
}  # fmt: skip
ONLY = {  # flags that are for one kind of source
    "run": ("sampled", "best", "trust"), KEYBOARD: ("keys", "noop", "wait"), "set": ("list", "show", "episode"),
}  # fmt: skip
Recorded = tuple[str, EnvOptions, Iterable[Episode]]


def command(args: list[str]) -> int:
    """shoal record RUN|FILE|zoo:NAME|MODULE:FUNCTION|keyboard --out ID|DIR, or shoal record --list|--show SET"""
    source = args[0] if args and not args[0].startswith("--") else ""
    groups = split(args[1:] if source else args)
    mine, rest = divide(groups, FLAGS)
    opts = options(mine, FLAGS, "record")
    if not source:
        return _look(opts, rest)
    kind = _kind(source)
    for other, names in ONLY.items():
        for name in names if other != kind else ():
            if name in opts:
                raise UsageError(f"--{name} is not for recording {source}")
    if not opts.get("out"):
        raise UsageError("shoal record needs to know where to: --out NAMESPACE/NAME-v0, or a directory")
    out = opts["out"] if ID.fullmatch(opts["out"]) else str(fixed(opts["out"]))  # before an environment is made
    record = {"run": _trained, "function": _scripted, KEYBOARD: _by_hand}[kind]
    env, how, found = record(source, opts, rest)
    codec = Codec(env, how)
    spaces = codec.observation_space, codec.action_space
    about = {"algorithm_name": source, "description": f"{env} by Shoal"}
    where, returns = write(found, spaces, out, about, env)
    print(f"{shown(where)}: {counted(len(returns), 'episode')} of {env}, mean return {np.mean(returns):.4g}")
    return 0


def _kind(source: str) -> str:
    """Return whether a source is a ``keyboard``, a ``function``, or a ``run`` or saved policy."""
    if source == KEYBOARD:
        return KEYBOARD
    return "function" if ":" in source and not Path(source).is_dir() and not is_saved(source) else "run"


# --------------------------------------------------------------------------------------- recording
def _trained(source: str, opts: Values, rest: Groups) -> Recorded:
    from shoal.policy.policy import episode_limit, evaluation_options

    if "env" in opts or rest:
        raise UsageError(f"{'--env' if 'env' in opts else rest[0][0]} is not for recording a run, which has its own")
    policy = open_policy(source, "best" if opts.get("best") else "last", bool(opts.get("trust"))).policy
    how, greedy = evaluation_options(policy.cfg), not opts.get("sampled")
    masked = MASK in policy.spec.observations and MASK not in policy.codec.observations  # by ``info``
    told: Values = {}

    def choose(obs: Any, reward: float, env: Any) -> Any:
        clipped = training_reward(np.array([reward], np.float32), how.reward_clip, how.reward_scale)
        mask = told["action_mask"][0] if masked else None
        return policy.act(obs, greedy, float(clipped[0]), action_mask=mask)

    env = policy.cfg.env
    limit = episode_limit(env, how)
    return env, how, play(env, how, choose, *_amount(opts), policy.reset, told.update, limit)


def _scripted(source: str, opts: Values, rest: Groups) -> Recorded:
    from shoal.policy.policy import episode_limit

    env, how = _environment(source, opts, rest)
    function = own_code.attribute(source, f"the policy '{source}'")
    sees_env = _sees_env(source, function)

    def choose(obs: Any, reward: float, inside: Any) -> Any:
        try:
            return function(obs, inside) if sees_env else function(obs)
        except Exception as error:  # whatever a user's function raises
            at = traceback.extract_tb(error.__traceback__)[-1]
            told = f"{type(error).__name__}: {error} ({at.filename}, line {at.lineno})"
            raise ShoalError(f"the policy '{source}' failed: {told}") from error

    return env, how, play(env, how, choose, *_amount(opts), max_steps=episode_limit(env, how))


def _sees_env(source: str, function: Any) -> bool:
    """Return whether a policy takes the environment too; UsageError if it takes neither an observation alone nor
    both."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a class in C, or not to be called at all
        signature = inspect.Signature()
    for count in (2, 1):
        with contextlib.suppress(TypeError):
            signature.bind(*range(count))
            return count == 2
    raise UsageError(
        f"'{source}' should take an observation, or an observation and the environment: it takes {signature}"
    )


def _by_hand(source: str, opts: Values, rest: Groups) -> Recorded:
    from shoal.demonstrations.keyboard import by_hand

    env, how = _environment(source, opts, rest)
    keys = {}
    for word in opts.get("keys", ()):
        names, equals, action = word.rpartition("=")
        try:
            keys[names] = coerce(Natural, action if equals else "")
        except ValueError:
            raise UsageError(f"--keys expects keys with their actions, as in left=0 right=1; found '{word}'") from None
    return env, how, by_hand(env, how, *_amount(opts), keys, opts.get("noop", 0), bool(opts.get("wait")))


def _environment(source: str, opts: Values, rest: Groups) -> tuple[str, EnvOptions]:
    if "env" not in opts:
        raise UsageError(f"to record '{source}', name its environment: --env ID")
    given = parse_flags(EnvOptions, rest, "shoal record")
    for name, what in (("reward_clip", "rewards"), ("reward_scale", "rewards"), ("last_action_reward", "observations")):
        if name in given:
            raise UsageError(f"{flag_name(name)} is for training: recorded {what} are the environment's own")
    hints, env = ranged(EnvOptions), opts["env"]
    values = {name: expect(hints[name], value, flag_name(name)) for name, value in given.items()}
    refuse_foreign(EnvOptions, {"env": env, **default_values(EnvOptions), **values}, dict.fromkeys(values, "flag"))
    return env, EnvOptions(**values)


def _amount(opts: Values) -> tuple[int, int]:
    return opts.get("episodes", 20), opts.get("seed", 0)


# ----------------------------------------------------------------------------------------- looking
def _look(opts: Values, rest: Groups) -> int:
    known = {"show", "episode"} if "show" in opts else {"list"}
    if rest or not {"list", "show"} & opts.keys() or opts.keys() - known:
        raise UsageError(
            "shoal record needs a run directory, MODULE:FUNCTION or keyboard first, and --out; or --list SET, or "
            "--show SET --episode N"
        )
    found = read(opts.get("list") or opts["show"])
    if "list" in opts:
        print(f"{found.name}: {counted(len(found.lengths), 'episode')}, {counted(sum(found.lengths), 'step')}")
        print(f"observations {found.observation_space}\nactions {found.action_space}")
        for number, e in enumerate(found.episodes()):
            print(f"{number:>5}  {len(e.rewards):>6,} steps, return {np.sum(e.rewards):g}, {_end(e)}")
        return 0
    number = opts.get("episode", 0)
    if number >= len(found.lengths):
        raise UsageError(f"--episode expects a number below {len(found.lengths)}, found {number}")
    e = next(episode for i, episode in enumerate(found.episodes()) if i == number)
    print(
        f"episode {number} of {len(found.lengths)}: {counted(len(e.rewards), 'step')}, return {np.sum(e.rewards):g}, "
        f"{_end(e)}"
    )
    for t in range(len(e.rewards) + 1):
        did = f"action {_text(e.actions[t])}, reward {e.rewards[t]:g}" if t < len(e.rewards) else "the last observation"
        print(f"{t:>5}  {_shown(e.observations, t)}  {did}")
    return 0


def _end(episode: Episode) -> str:
    return "terminated" if episode.terminated else "truncated"


def _shown(obs: Any, t: int) -> str:
    """Observation ``t`` in a line."""
    if isinstance(obs, dict):
        return ", ".join(f"{key} {_shown(part, t)}" for key, part in obs.items())
    if isinstance(obs, tuple):
        return ", ".join(_shown(part, t) for part in obs)
    return _text(obs[t])


def _text(value: Any) -> str:
    array = np.asarray(value)
    if array.size > 12:
        return f"{array.dtype} {list(array.shape)} from {array.min():g} to {array.max():g}, mean {array.mean():.4g}"
    return np.array2string(array, precision=4, suppress_small=True, separator=" ").replace("\n", "")
