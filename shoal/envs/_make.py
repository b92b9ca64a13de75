"""``spec`` and ``make``: name and options to a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from typing import Any

import numpy as np
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode

from shoal.api import MASK, Arrays, EnvBatch, EnvSpec, Observation, UsageError
from shoal.own_settings import TheirSettings
from shoal.paths import staying

from . import ale, composite, masks, registry, underlying, wrappers
from .action_box import ActionBox
from .batch import VectorBatch
from .looks import Key, known_as, look, pace
from .many_agents import ManyAgents, is_parallel
from .novelty import Novelty
from .one_by_one import OneByOne
from .options import EnvOptions
from .spaces import ActionCodec, ObservationCodec, batch_of
from .types import Env, Nested, Space, Vector

# MiniGrid's image holds codes, not intensities: object, colour and state (a door's, or the agent's direction)
MINIGRID_CODES: dict[str, tuple[int, ...]] = {"obs/image": (11, 6, 4)}


@dataclass(frozen=True)
class Described:
    """What an environment offers, and the spaces that this was read from."""

    spec: EnvSpec
    observation_space: Space
    action_space: Space
    plays: str = ""  # the id of Gymnasium's of what a function or class makes; "" where it has none
    pace: float = 0.0  # steps a second of one of them, where it was timed; 0: it was not


Known = dict[Key, Described]
_known: Known = {}  # of what was made: building an Atari game takes a tenth of a second


def spec(env: str, options: EnvOptions) -> EnvSpec:
    """Return what ``make`` would give. Builds one sub-environment, if none was built or told of before, and throws it
    away."""
    return describe(env, options).spec


def plays(env: str, options: EnvOptions) -> str:
    """Return the id of the environment that ``env`` makes where it is a function, a class or ``module:name``, without
    what is wrapped around it; "" if that has none, or shows or takes something else than the environment by itself.
    Any other ``env`` is its own id."""
    return describe(env, options).plays if registry.is_factory(env) else str(env)


def describe(env: str, options: EnvOptions) -> Described:
    """``spec`` with the spaces."""
    key = known_as(env, options)
    if key not in _known:
        _known[key] = look(env, options, _build_one, _build_and_time)
    return _known[key]


def _build_one(env: str, options: EnvOptions) -> Described:
    with staying():
        make(env, 1, options).close()
    return _known[known_as(env, options)]


def _build_and_time(env: str, options: EnvOptions) -> Described:
    """As ``_build_one``, and take some steps with it to see its pace. An error of theirs shows where they count."""
    with staying():
        made = make(env, 1, options)
        try:
            found = pace(made)
        except Exception:  # noqa: BLE001 (code of others)
            found = 0.0
        finally:
            made.close()
    return replace(_known[known_as(env, options)], pace=found)


def known(env: str) -> Known:
    """Return what this process knows of an environment, under whatever options: for another process to ``remember``."""
    return {key: described for key, described in _known.items() if key[:2] == known_as(env, EnvOptions())[:2]}


def remember(found: Known) -> None:
    """Take over what another process knows: ``spec`` and ``Codec`` then need not build anything."""
    _known.update(found)


class Codec:
    """Between one sub-environment's own observations and actions, and Shoal's batches of one."""

    def __init__(self, env: str, options: EnvOptions):
        found = describe(env, options)
        self.observation_space, self.action_space = found.observation_space, found.action_space
        self._observation, self._action = _codecs(str(env), self.observation_space, self.action_space, options)

    @property
    def observations(self) -> dict[str, Observation]:
        """Observations that ``encode`` gives; masks in ``info`` and what Shoal adds are not among them."""
        return self._observation.observations

    @property
    def parts(self) -> dict[str, tuple[list[str | int], Space]]:
        """For each of ``observations`` the keys that lead to it in one of the environment's own, and its space."""
        found = {}
        for name, path in self._observation.paths.items():
            space: Any = self.observation_space
            for key in path:
                space = space[key]
            found[name] = (list(path), space)
        return found

    @property
    def action_leaves(self) -> list[composite.Leaf]:
        """The parts of an action that have no parts of their own, in the space's order."""
        return self._action.leaves

    def encode(self, obs: Nested, num: int | None = None) -> Arrays:
        """One observation as the environment gives it -> arrays ``[1, ...]``, or a batch of ``num`` of them,
        ``[num, ...]`` in each of its parts -> arrays ``[num, ...]``; UsageError unless it is of that shape."""
        return self._observation(batch_of(self.observation_space, obs, num))

    def encode_steps(self, obs: Nested) -> Arrays:
        """Many observations (of each leaf ``[N, ...]``) -> arrays ``[N, ...]``."""
        return self._observation(obs)

    def encode_actions(self, actions: np.ndarray) -> np.ndarray:
        """Actions of a Discrete or a Box space, as the environment takes them ``[N, ...]`` -> as agents choose them:
        int64 ``[N]``, or float32 ``[N, A]`` in the units of ``ActionBox``."""
        if composite.parts(self.action_space):
            raise UsageError(f"actions of several parts ({self.action_space}) cannot be learned from recordings yet")
        if isinstance(self.action_space, gs.Box):
            return ActionBox(self.action_space).to_agent(actions)
        return np.asarray(actions, np.int64) - int(getattr(self.action_space, "start", 0))

    def decode(self, action: np.ndarray, batch: bool = False) -> Nested:
        """An action ``[1, ...]`` of an agent -> one that the environment takes; with ``batch``, actions ``[N, ...]``
        -> as many (a dict or tuple of batches, for spaces of several parts)."""
        given = self._action(action)
        if batch:
            return given
        out = composite.first(given)
        return int(out) if isinstance(self.action_space, gs.Discrete) else out


def make(env: str, num: int, options: EnvOptions) -> EnvBatch:
    """Return ``num`` environments that are stepped together in this process; ``reset`` seeds them."""
    if num < 1:
        raise UsageError(f"a batch needs at least one environment, not {num}")
    key = known_as(env, options)  # before it is made, which may change the working directory
    found = registry.find(env, options)
    with (settings := TheirSettings()):
        raw = _raw(found, num, options)
    mode = autoreset_mode(str(env), raw)
    observation, action = _codecs(found.id, raw.single_observation_space, raw.single_action_space, options)
    observed = observation.observations
    if _info_masks(found, raw, action, options):
        observed = {**observed, MASK: masks.leaf(action.action)}
    is_ale = found.backend == "ale"
    described = EnvSpec(
        id=str(env),
        observations=observed,
        action=action.action,
        stack=options.frame_stack if is_ale and len(raw.single_observation_space.shape or ()) == 3 else 1,
        pad="zero" if is_ale else "repeat",
        autoreset="next_step" if mode is AutoresetMode.NEXT_STEP else "same_step",
        frames_per_step=options.frame_skip if is_ale else 1,
        backend=found.backend,
        why=found.why,
        agents=len(raw.agents) if isinstance(raw, ManyAgents) else 1,
    )
    seeds = "array" if is_ale else "list" if found.single is not None else "int"
    infos = found.backend not in ("ale", "envpool")  # theirs are the emulator's own counters
    told_of = masks.told_of(raw.single_observation_space, options.action_mask, action.action)
    inner = VectorBatch(raw, described, observation, action, mode, seeds, options.check, infos, told_of, settings)
    batch: EnvBatch = inner
    if is_ale and options.life_loss:
        fire = options.fire_reset and ale.needs_fire(raw)
        batch = ale.LifeLoss(inner, options.frame_stack, ale.FIRE if fire else 0)
    if options.reward_clip != "none" or options.reward_scale != 1.0:
        batch = wrappers.TrainingReward(batch, options.reward_clip, options.reward_scale)
    if options.novelty:
        batch = Novelty(batch, options.novelty, options.novelty_steps)
    if options.last_action_reward:
        described = replace(described, observations=wrappers.LastActionReward.observations(described))
        batch = wrappers.LastActionReward(batch, described)
    _known[key] = Described(batch.spec, raw.single_observation_space, raw.single_action_space, underlying.id_of(raw))
    return batch


def autoreset_mode(env: str, raw: Vector) -> AutoresetMode:
    """When a vector environment resets, as its metadata has it; Gymnasium's default where it does not say."""
    told = (raw.metadata or {}).get("autoreset_mode") or AutoresetMode.NEXT_STEP
    named = {key: mode for mode in AutoresetMode for key in (mode, mode.name, mode.value)}
    if told not in named:
        expected = ", ".join(f"AutoresetMode.{mode.name}" for mode in AutoresetMode)
        raise UsageError(f"environment {env!r} has the autoreset_mode {told!r} in its metadata, expected {expected}")
    return named[told]


def one(env: str, options: EnvOptions) -> Vector:
    """One sub-environment as it is, in a vector of one: its own observations, actions and rewards."""
    return _raw(registry.find(env, options), 1, options)


def _raw(found: registry.Found, num: int, options: EnvOptions) -> Vector:
    """The vector environment itself."""
    if found.backend == "ale":
        return ale.make_vector(found.game, num, options)
    if found.few is not None and num <= registry.MAX_ONE_BY_ONE_ENVS:
        return _sync(found.id, repeat(found.few), num, options)
    if found.vector is not None:
        return found.vector(num)
    assert found.single is not None
    first = found.single()
    if is_parallel(first):
        return ManyAgents(first, found.single, num, found.id, registry.time_limit(options, None) or 0)
    return _sync(found.id, chain([lambda: first], repeat(found.single)), num, options)


def _codecs(env: str, observation: Space, action: Space, options: EnvOptions) -> tuple[ObservationCodec, ActionCodec]:
    symbolic = MINIGRID_CODES if env.startswith(registry.PACKAGES["minigrid"]) else None
    actions = ActionCodec(action, env)
    masked = masks.in_observation(observation, options.action_mask, actions.action, env)
    mask = masks.leaf(actions.action) if masked else None
    return ObservationCodec(observation, env, symbolic, mask), actions


def _info_masks(found: registry.Found, raw: Vector, action: ActionCodec, options: EnvOptions) -> bool:
    """Return whether ``info`` says which actions are allowed."""
    if isinstance(raw, OneByOne) and isinstance(raw.envs[0], wrappers.Named):
        return raw.envs[0].masks
    return masks.in_info(raw, raw.single_observation_space, options.action_mask, action.action, found.id)


def _sync(id: str, makers: Iterable[Callable[[], Env]], num: int, options: EnvOptions) -> Vector:
    spaces: dict[str, Space] = {}  # of the first

    def named(index: int, make_one: Callable[[], Env]) -> Env:
        made = wrappers.Named(make_one(), id, index, options.check, options.action_mask)
        for space in ("observation_space", "action_space"):
            here = getattr(made, space)
            if here != (there := spaces.setdefault(space, here)):
                raise UsageError(f"environment {id!r} has another {space} each time it is made: {there}, then {here}")
        return made

    return OneByOne([partial(named, index, make_one) for index, make_one in zip(range(num), makers, strict=False)])
