"""Episodes as the streams that actors send, so that a replay table takes them: the same observations, the same training
reward, the same last action and reward."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gs

from shoal.api import MASK, Arrays, EnvSpec, Field, Replay, ShoalError, Spec, State, UsageError
from shoal.demonstrations.episodes import Demonstrations, Episode, read
from shoal.envs import Codec, EnvOptions, spec, training_reward
from shoal.words import counted

CHUNK = 256  # steps of an unroll


def stream_fields(sent: Spec) -> dict[str, Field]:
    """Return what of an actor's stream a demonstration has: steps, without values, recurrent states and final
    observations."""
    left_out = ("q_taken", "q_max")
    return {
        name: Field((CHUNK, 1, *f.shape[2:]), f.dtype)
        for name, f in sent.items()
        if name not in left_out and not name.startswith(("state/", "final/"))
    }


def read_for(source: str, env: str, options: EnvOptions) -> Demonstrations:
    """The demonstrations of ``source``. Raises UsageError unless they are of this environment."""
    found = read(source)
    check(found, Codec(env, options), spec(env, options))
    return found


def fill(table: Replay, found: Demonstrations, env: str, options: EnvOptions, fields: Mapping[str, Field]) -> Replay:
    """``table`` of these ``fields``, with all of the demonstrations in it."""
    codec = Codec(env, options)
    for episode in found.episodes():
        for unroll in unrolls(episode, codec, options, fields):
            table.add(unroll)
    return table


def check(demonstrations: Demonstrations, codec: Codec, env: EnvSpec) -> None:
    """Raise UsageError unless these demonstrations are of such an environment."""
    where = f"the demonstrations '{demonstrations.name}'"
    if env.stack > 1:
        raise UsageError(f"{where} cannot be used with {env.id}: demonstrations of stacked frames are not supported")
    if not demonstrations.lengths or min(demonstrations.lengths) < 1:
        raise UsageError(f"{where} hold no episode, or one without a step")
    if MASK in env.observations and MASK not in codec.observations:
        raise UsageError(
            f"{where} hold no action masks, and those of {env.id} are in its info, not in its observations"
        )
    for what, found, expected in (
        ("observations", demonstrations.observation_space, codec.observation_space),
        ("actions", demonstrations.action_space, codec.action_space),
    ):
        if found is not None and not alike(found, expected):
            raise UsageError(f"{where} have the {what} {found}, but those of {env.id} are {expected}")
    if demonstrations.observation_space is None:
        for number, episode in enumerate(demonstrations.episodes()):
            _check_episode(f"{where}, episode {number}", episode, codec, env)


def _check_episode(where: str, episode: Episode, codec: Codec, env: EnvSpec) -> None:
    """Raise UsageError unless an episode that says nothing of its spaces is of such an environment."""
    steps, action = len(episode.rewards), env.action
    try:
        leaves = codec.encode_steps(episode.observations)
        actions = codec.encode_actions(episode.actions)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{where}: its observations or actions are not those of {env.id}: {error}") from error
    for name, leaf in leaves.items():
        if len(leaf) != steps + 1:
            raise UsageError(
                f"{where}: an episode of {counted(steps, 'step')} needs {counted(steps + 1, 'observation')}, found "
                f"{len(leaf)}"
            )
        if leaf.shape[1:] != (expected := env.observations[name].shape):
            raise UsageError(f"{where} has '{name}' of shape {leaf.shape[1:]}, but that of {env.id} is {expected}")
        if not np.isfinite(leaf).all():
            raise UsageError(f"{where} has observations that are not finite")
    low, high = (action.low, action.high) if action.kind == "continuous" else (0, action.sizes[0] - 1)
    if actions.shape != (steps, *action.shape) or not ((actions >= low) & (actions <= high)).all():
        raise UsageError(f"{where} has actions that {env.id} does not take: its actions are {codec.action_space}")
    if not np.isfinite(np.asarray(episode.rewards, np.float64)).all():
        raise UsageError(f"{where} has rewards that are not finite")


def alike(a: gs.Space[Any], b: gs.Space[Any]) -> bool:
    """Return whether two spaces hold the same arrays: bounds of a Box do not matter."""
    if isinstance(a, gs.Dict) and isinstance(b, gs.Dict):
        return a.spaces.keys() == b.spaces.keys() and all(alike(a[k], b[k]) for k in a.spaces)
    if isinstance(a, gs.Tuple) and isinstance(b, gs.Tuple):
        return len(a.spaces) == len(b.spaces) and all(map(alike, a.spaces, b.spaces))
    if isinstance(a, gs.Box) and isinstance(b, gs.Box):
        return a.shape == b.shape and a.dtype == b.dtype
    return bool(a == b)


def unrolls(episode: Episode, codec: Codec, options: EnvOptions, fields: Mapping[str, Field]) -> Iterator[Arrays]:
    """An episode as unrolls ``[T, 1, ...]`` of ``fields`` that continue one another."""
    steps = len(episode.rewards)
    whole: Arrays = {name: np.zeros((steps + 1, 1, *f.shape[2:]), f.dtype) for name, f in fields.items()}
    for name, leaf in codec.encode_steps(episode.observations).items():
        if leaf.shape[0] != steps + 1:
            raise UsageError(
                f"an episode of {counted(steps, 'step')} needs {counted(steps + 1, 'observation')}, found "
                f"{leaf.shape[0]}"
            )
        whole[name][:, 0] = leaf
    if MASK in whole and not whole[MASK][-1].any():
        whole[MASK][-1] = True  # nothing is chosen there
    whole["action"][:-1, 0] = codec.encode_actions(episode.actions)
    whole["reward"][:-1, 0] = training_reward(
        np.asarray(episode.rewards, np.float32), options.reward_clip, options.reward_scale
    )
    if "obs/last_action" in whole:
        whole["obs/last_action"][1:] = whole["action"][:-1].reshape(whole["obs/last_action"][1:].shape)
        whole["obs/last_reward"][1:, 0, 0] = whole["reward"][:-1, 0]
    whole["first"][0] = True
    whole["valid"][:-1] = True
    whole["terminated"][steps - 1] = episode.terminated
    whole["truncated"][steps - 1] = not episode.terminated  # also where a recording was cut off
    for begin in range(0, steps + 1, CHUNK):
        yield {name: array[begin : begin + CHUNK] for name, array in whole.items()}


def table_state(table: Replay) -> State:
    """Of a replay that nobody fills: all but its rows, of which there is a hash."""
    state = table.state()
    rows = state.pop("rows/data")
    return {"table": state, "sha256": hashlib.sha256(rows.tobytes()).hexdigest()}


def restore_table(table: Replay, state: State) -> None:
    rows = table.state()["rows/data"]
    if hashlib.sha256(rows.tobytes()).hexdigest() != state["sha256"]:
        raise ShoalError("the demonstrations are not those that the checkpoint was made with")
    table.restore({**state["table"], "rows/data": rows.copy()})
