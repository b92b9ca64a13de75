"""A trained policy: one observation in, one action out; and its evaluation over whole episodes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from safetensors import SafetensorError

from shoal.api import MASK, Agent, Arrays, EnvBatch, EnvSpec, Tensors, UsageError
from shoal.envs import Codec, EnvOptions, held_out, make
from shoal.envs.composite import flat_masks
from shoal.own_settings import own_settings
from shoal.paths import require_path
from shoal.roles.evaluator import MAX_STEPS, Episodes as Played, Returns
from shoal.settings.arguments import explains_arguments
from shoal.settings.flags import expect
from shoal.settings.kinds import env_kind
from shoal.settings.other_names import instead
from shoal.settings.other_python_names import OF_POLICY
from shoal.settings.ranges import Envs, Episodes, Natural
from shoal.settings.schedule import plain
from shoal.systems import SYSTEMS, load
from shoal.topology.config import anchored
from shoal.untrusted import RUN_FORMAT, excerpt

MIN_EPISODES = 10  # of two ways to act, below which chance alone tells their means apart


class Policy:
    """Acts as a trained agent. The recurrent state, if any, is kept inside; call ``reset`` at each episode's
    start. ``act`` takes an observation as the user's own environment gives it (for Atari: the preprocessed
    stack ``[4, 84, 84]``) and returns an action that this environment takes."""

    @own_settings()
    def __init__(self, system: Any, cfg: Any, params: Tensors, version: int = 0, seed: int = 0):
        self.system, self.cfg, self.params, self.version, self.seed = system, cfg, params, version, seed
        self._remembers = remembers(cfg)
        self.spec: EnvSpec = cfg.env_spec()
        self.codec = Codec(cfg.env, cfg)
        self.agent: Agent = self.fresh_agent(seed)
        self.reset()

    @property
    def samples(self) -> bool:
        """Return whether training draws actions from a learned distribution, whose mode is the greedy action."""
        return bool(getattr(self.agent, "samples", False))

    def reset(self, envs: int | None = None) -> None:
        """Start a new episode: the next observation is its first. With ``envs``, ``act`` takes and returns a batch for
        that number of environments from now on, all of which start."""
        if envs is not None and envs < 1:
            raise UsageError(f"expected at least 1 environment, found {envs}")
        self.envs = envs
        self._state = self.agent.initial_state(envs or 1)
        self._first = np.ones(envs or 1, bool)
        self._last_action: np.ndarray | None = None

    @explains_arguments
    @own_settings()
    def act(
        self, obs: Any, greedy: bool = True, reward: float | np.ndarray = 0.0, first: np.ndarray | None = None,
        action_mask: np.ndarray | None = None,
    ) -> Any:  # fmt: skip
        """Return the action for one observation; ``greedy=False`` draws it from the policy's distribution. ``reward``:
        of the step before, clipped as in training; only a policy with ``last_action_reward`` looks at it.
        ``action_mask``: which actions are allowed, of an environment that says so in ``info["action_mask"]``.

        After ``reset(N)``: N actions ``[N, ...]`` for observations ``[N, ...]`` (in each part of a Dict or Tuple), as a
        vector environment gives and takes them; ``reward`` may be ``[N]``, and ``first``, bool ``[N]``, says in which
        environments the observation begins a new episode."""
        if first is not None:
            if self.envs is None or np.shape(first) != (self.envs,):
                raise UsageError(
                    f"'first' should have shape ({self.envs or 'N'},) after reset(N), found {np.shape(first)}"
                )
            self._first = self._first | np.asarray(first, bool)
        batch = self._encode(obs, reward)
        if MASK in self.spec.observations:
            batch[MASK] = self._mask(batch.get(MASK), action_mask)
        elif action_mask is not None:
            raise UsageError(f"this policy was trained without action masks, which {self.cfg.env} does not give")
        act = self.agent.act(batch, self._first, self._state, greedy)
        self._state, self._first = act.state, np.zeros_like(self._first)
        self._last_action = np.array(act.action)
        return self.codec.decode(self._last_action, self.envs is not None)

    def __call__(self, obs: Any, **given: Any) -> Any:
        """Return ``act(obs, ...)``."""
        return self.act(obs, **given)

    if not TYPE_CHECKING:  # so that a type checker still knows what there is

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"a policy has no attribute '{name}'{instead(OF_POLICY, name)}")

    def __repr__(self) -> str:
        how = ", recurrent" if self.agent.initial_state(1) else ""
        masked = ", with action masks" if MASK in self.spec.observations else ""
        what = f"{self.cfg.system()} on {self.cfg.env}, {self.spec.action}{how}{masked}"
        return f"<Policy of {what}, version {self.version}>"

    def within(self, env: str) -> Policy:
        """Return this policy for another environment with the same observations and actions, and without
        ``env_kwargs``. Raises UsageError if the observations or actions differ."""
        same = dataclasses.replace(self.cfg, env=env, env_kwargs={})
        found = same.env_spec()
        for what, here, there in (
            ("observations", self.spec.observations, found.observations), ("actions", self.spec.action, found.action)
        ):  # fmt: skip
            if here != there:
                raise UsageError(f"the policy was trained with other {what} than those of {env}: {here}, found {there}")
        return Policy(self.system, same, self.params, self.version, self.seed)

    def _system_name(self) -> str:
        """Return what ``systems.load`` finds its system by."""
        module: str = self.system.__name__
        name = next((name for name, known in SYSTEMS.items() if known == module), module)
        if name == module and "." not in module:  # a file of the user's own
            return str(Path(self.system.__file__).resolve())
        return name

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what pickles and copies are built from: they are in the same episode, and draw actions anew from
        ``seed``."""
        episode = {name: getattr(self, name) for name in ("envs", "_state", "_first", "_last_action")}
        return _rebuilt, (self._system_name(), self.cfg, self.params, self.version, self.seed), episode

    def save(self, file: str | Path) -> None:
        """Write the policy to one file (safetensors, with its configuration in the header) for ``shoal.load``. The path
        of demonstrations is left out, since only training reads them."""
        from safetensors.torch import save_file

        require_path(file, "policy.save", "the path of a file")
        name = self._system_name()
        kept = [f.name for f in dataclasses.fields(self.cfg) if f.name != "demonstrations"]
        values = anchored(plain({field: getattr(self.cfg, field) for field in kept}))
        facts = {"format": RUN_FORMAT, "system": name, "config": values, "version": self.version, "seed": self.seed}
        file = Path(file)
        temporary = file.with_name(f".{file.name}.tmp")
        tensors = {k: v.detach().cpu().contiguous().clone() for k, v in self.params.items()}
        try:
            save_file(tensors, temporary, {"shoal": json.dumps(facts)})
            os.replace(temporary, file)
        except (OSError, SafetensorError) as error:
            temporary.unlink(missing_ok=True)
            raise UsageError(f"the policy cannot be saved in '{file}': {error}") from None

    @explains_arguments
    def evaluate(
        self, episodes: int = 10, seed: int = 0, greedy: bool = True, envs: int = 8, max_steps: int = 0
    ) -> Returns:
        """Raw returns of ``episodes`` whole episodes, played in up to ``envs`` environments together; ``.info`` of the
        list holds the means of the numbers that the environment gave at their ends (``success``). Environment i begins
        with ``seed + i``: seeds at least ``envs`` apart give other episodes throughout. ``max_steps``: of an episode,
        see ``episode_limit``; those that have not ended by then are counted in ``.unfinished`` of the list."""
        episodes, envs = expect(Episodes, episodes, "'episodes'"), expect(Envs, envs, "'envs'")
        limit = episode_limit(self.cfg.env, self.cfg, expect(Natural, max_steps, "'max_steps'"))
        return play(self.fresh_agent(seed), self.cfg, episodes, seed, greedy, envs, limit)

    @own_settings()
    def fresh_agent(self, seed: int) -> Agent:
        """Return another agent with these parameters and its own random generator. Raises UsageError if they do not
        fit."""
        agent = self.system.agent(self.cfg, seed % 2**63)  # which every generator takes
        try:
            agent.load(self.params, self.version)
        except RuntimeError as error:  # of load_state_dict
            detail = excerpt(str(error).splitlines()[-1].strip())
            raise UsageError(f"the policy does not fit {self.cfg.env}, which is not what it was: {detail}") from error
        return agent  # type: ignore[no-any-return]

    def _mask(self, observed: np.ndarray | None, given: np.ndarray | None) -> np.ndarray:
        """The masks of a batch, those given before those observed; UsageError if there are none, or none is allowed."""
        shape = (len(self._first), *self.spec.observations[MASK].shape)
        if given is not None:
            observed = flat_masks(self.codec.action_space, given, self.envs)
        if observed is None:
            raise UsageError(f"{self.cfg.env} says in info['action_mask'] what is allowed: give it as action_mask")
        if observed.shape != shape:
            expected = shape if self.envs is not None else shape[1:]
            found = observed.shape if self.envs is not None else observed.shape[1:]
            raise UsageError(f"'action_mask' should have shape {expected}, found {found}")
        begins = np.cumsum((0, *self.spec.action.sizes[:-1]))
        if not np.logical_or.reduceat(observed, begins, axis=1).all():
            raise UsageError(f"the action mask forbids every action of {self.cfg.env}")
        return observed

    def _encode(self, obs: Any, reward: float | np.ndarray) -> Arrays:
        out = self.codec.encode(obs, self.envs)
        if self._remembers:
            like, num = self.spec.observations["obs/last_action"], len(self._first)
            last, begins = self._last_action, self._first
            out["obs/last_action"] = np.zeros((num, *like.shape), like.dtype)
            out["obs/last_reward"] = np.zeros((num, 1), np.float32)
            if last is not None:
                out["obs/last_action"][:] = last.reshape(num, *like.shape)
                out["obs/last_reward"][:, 0] = reward
                out["obs/last_action"][begins], out["obs/last_reward"][begins] = 0, 0.0
        return out


def _rebuilt(system: str, *given: Any) -> Policy:
    return Policy(load(system), *given)


def differ(some: Sequence[float], others: Sequence[float]) -> bool:
    """Return whether two means are further apart than three standard errors of their difference; of fewer returns than
    ``MIN_EPISODES`` nobody can say."""
    if min(len(some), len(others)) < MIN_EPISODES:
        return False
    error = np.hypot(*(np.std(returns, ddof=1) / np.sqrt(len(returns)) for returns in (some, others)))
    return bool(abs(np.mean(some) - np.mean(others)) > 3 * error)


def how(greedy: bool) -> str:
    """Say in words how a policy that ``samples`` acts."""
    if greedy:
        return "the policy's best guess, which is the default (without --sampled)"
    return "actions drawn from the policy, which is what its paper evaluates (--sampled)"


def evaluation_options(cfg: Any) -> EnvOptions:
    """The environment of an evaluation: as in training, but a lost life does not end an episode, nothing is paid for
    novelty, and scenes are those kept for validation, where an environment has some."""
    env_kwargs = {**held_out(cfg.env), **cfg.env_kwargs}
    return cast(EnvOptions, dataclasses.replace(cfg, life_loss=False, novelty=0.0, env_kwargs=env_kwargs))


def evaluation_envs(cfg: Any, num: int) -> EnvBatch:
    """Environments for an evaluation: ``num``, or as many more as make games of many agents whole."""
    agents = cfg.env_spec().agents
    return make(cfg.env, -(-num // agents) * agents, evaluation_options(cfg))


def episode_limit(env: str, options: EnvOptions, asked: int = 0) -> int:
    """Agent steps after which an evaluation gives up an episode: as many as are ``asked`` for; 0: 27,000, or as many as
    the time limit in ``options``, if those are more."""
    frames = options.max_episode_frames // options.frame_skip if env_kind(env) == "atari" else 0
    return asked or max(MAX_STEPS, frames, options.max_episode_steps or 0)


def play(
    agent: Agent, cfg: Any, episodes: int, seed: int, greedy: bool, envs: int, max_steps: int = 0,
    seconds: float = math.inf,
) -> Returns:  # fmt: skip
    """Raw returns of ``episodes`` whole episodes of an agent in up to ``envs`` environments for an evaluation, which
    ends after so many ``seconds``; ``max_steps``: see ``episode_limit``."""
    # One thread: batches this small gain little by more, and wait long where others use the cores
    with own_settings(threads=1), contextlib.closing(evaluation_envs(cfg, min(envs, episodes))) as env:
        return Played(env, agent, episodes, seed, greedy, episode_limit(cfg.env, cfg, max_steps)).play(seconds)


def remembers(cfg: Any) -> bool:
    """Does the policy see its last action and reward?"""
    return bool(getattr(cfg, "last_action_reward", False))
