"""``spec`` and ``make``: from a name and options to a specification and a batch of environments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from typing import Any

import numpy as np
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode

from shoal.api import MASK, Arrays, EnvBatch, EnvironmentFailed, EnvSpec, Observation, UsageError
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
    """The specification of an environment, and the spaces that it was read from."""

    spec: EnvSpec
    observation_space: Space
    action_space: Space
    plays: str = ""  # for an environment made by a function or class: its Gymnasium id; "" if it has none
    pace: float = 0.0  # measured steps per second of one environment; 0: not measured


Known = dict[Key, Described]
_known: Known = {}  # cache: building an Atari game takes 0.1 s


def spec(env: str, options: EnvOptions) -> EnvSpec:
    """Return the specification of the environments that ``make`` builds. Unless it is cached, one environment is built
    and closed."""
    return describe(env, options).spec


def plays(env: str, options: EnvOptions) -> str:
    """Return the Gymnasium id of the environment that ``env`` (a function, a class or ``module:name``) makes, below its
    wrappers. Returns "" if it has none, or if wrappers change its observations or actions. Any other ``env`` is its own
    id."""
    return describe(env, options).plays if registry.is_factory(env) else str(env)


def describe(env: str, options: EnvOptions) -> Described:
    """Return the specification with the spaces; see ``spec``."""
    key = known_as(env, options)
    if key not in _known:
        _known[key] = look(env, options, _build_one, _build_and_time)
    return _known[key]


def _build_one(env: str, options: EnvOptions) -> Described:
    with staying():
        make(env, 1, options).close()
    return _known[known_as(env, options)]


def _build_and_time(env: str, options: EnvOptions) -> Described:
    """Return the result of ``_build_one`` with the measured speed of a few steps. Errors of a step are left for the
    run, except that a UsageError is raised for one that every step would have."""
    with staying():
        made = make(env, 1, options)
        try:
            found = pace(made)
        except Exception as error:
            if isinstance(error, EnvironmentFailed) and error.certain:
                raise UsageError(str(error)) from error
            found = 0.0
        finally:
            made.close()
    return replace(_known[known_as(env, options)], pace=found)


def known(env: str) -> Known:
    """Return the cached descriptions of an environment, under any options, for ``remember`` in another process."""
    return {key: described for key, described in _known.items() if key[:2] == known_as(env, EnvOptions())[:2]}


def remember(found: Known) -> None:
    """Add descriptions from another process to the cache, so that ``spec`` and ``Codec`` need not build anything."""
    _known.update(found)


class Codec:
    """Converts between observations and actions of one environment and Shoal's batches of one."""

    def __init__(self, env: str, options: EnvOptions):
        found = describe(env, options)
        self.observation_space, self.action_space = found.observation_space, found.action_space
        self._observation, self._action = _codecs(str(env), self.observation_space, self.action_space, options)

    @property
    def observations(self) -> dict[str, Observation]:
        """The observations that ``encode`` returns, without masks in ``info`` and observations that Shoal adds."""
        return self._observation.observations

    @property
    def parts(self) -> dict[str, tuple[list[str | int], Space]]:
        """Return, for each of ``observations``, the keys that lead to it in an observation of the environment, and its
        space."""
        found = {}
        for name, path in self._observation.paths.items():
            space: Any = self.observation_space
            for key in path:
                space = space[key]
            found[name] = (list(path), space)
        return found

    @property
    def action_leaves(self) -> list[composite.Leaf]:
        """Return the parts of an action that have no parts of their own, in the space's order."""
        return self._action.leaves

    def encode(self, obs: Nested, num: int | None = None) -> Arrays:
        """Return arrays ``[1, ...]`` for one observation of the environment, or arrays ``[num, ...]`` for a batch of
        ``num`` of them. Raises UsageError for another shape."""
        return self._observation(batch_of(self.observation_space, obs, num))

    def encode_steps(self, obs: Nested) -> Arrays:
        """Return arrays ``[N, ...]`` for many observations (each leaf ``[N, ...]``)."""
        return self._observation(obs)

    def encode_actions(self, actions: np.ndarray) -> np.ndarray:
        """Return actions ``[N, ...]`` of a Discrete or a Box space as agents choose them: int64 ``[N]``, or float32
        ``[N, A]`` in the units of ``ActionBox``. Raises UsageError for other spaces."""
        if composite.parts(self.action_space):
            raise UsageError(f"actions of several parts ({self.action_space}) cannot be learned from recordings yet")
        if isinstance(self.action_space, gs.Box):
            return ActionBox(self.action_space).to_agent(actions)
        return np.asarray(actions, np.int64) - int(getattr(self.action_space, "start", 0))

    def decode(self, action: np.ndarray, batch: bool = False) -> Nested:
        """Return an agent's action ``[1, ...]`` as the environment takes it; with ``batch``, a batch of actions ``[N,
        ...]`` (a dict or tuple of batches for spaces of several parts)."""
        given = self._action(action)
        if batch:
            return given
        out = composite.first(given)
        return int(out) if isinstance(self.action_space, gs.Discrete) else out


def make(env: str, num: int, options: EnvOptions) -> EnvBatch:
    """Return ``num`` environments that are stepped together in this process. Their ``reset`` takes the seed."""
    if num < 1:
        raise UsageError(f"a batch needs at least one environment, not {num}")
    key = known_as(env, options)  # computed first, because making it may change the working directory
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
    infos = found.backend not in ("ale", "envpool")  # infos of the other back ends are counters of the emulator
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
    """Return when a vector environment resets, from its metadata; by default, Gymnasium's default. Raises UsageError
    for an unknown mode."""
    told = (raw.metadata or {}).get("autoreset_mode") or AutoresetMode.NEXT_STEP
    named = {key: mode for mode in AutoresetMode for key in (mode, mode.name, mode.value)}
    if told not in named:
        expected = ", ".join(f"AutoresetMode.{mode.name}" for mode in AutoresetMode)
        raise UsageError(f"environment {env!r} has the autoreset_mode {told!r} in its metadata, expected {expected}")
    return named[told]


def one(env: str, options: EnvOptions) -> Vector:
    """Return a vector of one unmodified environment: its own observations, actions and rewards."""
    return _raw(registry.find(env, options), 1, options)


def _raw(found: registry.Found, num: int, options: EnvOptions) -> Vector:
    """Return the vector environment without wrappers of Shoal's."""
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
    """Return True if ``info`` contains masks of allowed actions."""
    if isinstance(raw, OneByOne) and isinstance(raw.envs[0], wrappers.Named):
        return raw.envs[0].masks
    return masks.in_info(raw, raw.single_observation_space, options.action_mask, action.action, found.id)


def _sync(id: str, makers: Iterable[Callable[[], Env]], num: int, options: EnvOptions) -> Vector:
    spaces: dict[str, Space] = {}  # of the first environment

    def named(index: int, make_one: Callable[[], Env]) -> Env:
        made = wrappers.Named(make_one(), id, index, options.check, options.action_mask)
        for space in ("observation_space", "action_space"):
            here = getattr(made, space)
            if here != (there := spaces.setdefault(space, here)):
                raise UsageError(f"environment {id!r} has another {space} each time it is made: {there}, then {here}")
        return made

    return OneByOne([partial(named, index, make_one) for index, make_one in zip(range(num), makers, strict=False)])
