"""The settings that every system has: the environment, the actors, the length of the run."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from shoal.api import EnvSpec, UsageError
from shoal.envs import EnvOptions, known, registration, remember, spec
from shoal.envs._make import Codec
from shoal.envs.on_device import left_off
from shoal.machine import cores
from shoal.nets import encoder
from shoal.own_code import absolute
from shoal.settings.flags import expect, ranged
from shoal.settings.ranges import Count, Device, Envs, Natural, OnlyWith, Replicas, Threads
from shoal.topology.fitting import Fit, fitted
from shoal.types import State, Values
from shoal.words import counted

Preset = Values  # fields of a configuration
Presets = dict[str, Preset]
SERVED = (
    "impala",
    "recurrent-ppo",
    "dqn",
    "apex-dqn",
    "rainbow",
    "r2d2",
    "r2d3",
    "apex-dpg",
    "d4pg",
)  # these have an inference server
MOST_ACTORS = 10_000  # upper limit of ``Replicas``
SHORT = 1_000  # agent steps below which a preset's rollouts are not shortened
SMALL_LAYER = 256  # units of a layer up to which a CPU core is as fast as a GPU, transfers included
MIN_UPDATES = 100  # fewer updates hardly train a policy
PATH_FIELDS = ("env", "torso", "demonstrations", "sampler")  # fields that may be ``file.py:name`` or a directory
KNOWN, REGISTERED = "environment known", "environment registered"  # keys beside the fields in a pickle


@dataclass(frozen=True, kw_only=True)
class SystemConfig(EnvOptions):
    """Settings of every system."""

    only_with: ClassVar[OnlyWith] = {"novelty_steps": ("novelty",)}

    env: str = "CartPole-v1"
    """Gymnasium id, `pointgoal:NAME`, `toy:NAME`, or `module:factory` or `file.py:factory` of your own; in Python also
    a class or function that makes it."""
    actors: Replicas = 0
    """Actor processes; 0: one per core."""
    envs: Envs = 16
    """Environments per actor."""
    total_envs: Natural = 0
    """Environments of all actors together, divided evenly among them, instead of `envs`: the learning problem is then
    the same on any number of cores; 0: `envs` per actor."""
    unroll: Count = 32
    """Agent steps that an actor takes between two messages."""
    steps: Count = 1_000_000
    """Length of the run (agent steps over all actors); schedules end here."""
    device: Device = "auto"
    """Learner's device: cpu, cuda, cuda:N; auto: cuda if there is one (asynchronous workers and es: the CPU)."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of convolutions; auto: bf16 if the CPU (AMX, AVX512_BF16) or the GPU has instructions for it, else
    fp32."""
    inference: Literal["auto", "actor", "server"] = "auto"
    """Where actions are chosen: actor, by each actor's copy of the parameters; server, by a process that has the newest
    parameters on the learner's device and serves all actors (in systems that support it); auto: server if that device
    is a GPU and the network is more than a small perceptron, else actor."""
    double_buffer: Literal["auto", "on", "off"] = "auto"
    """Whether an actor steps one half of its environments while the inference server chooses actions for the other;
    auto: if the server is on a GPU and the environments can be halved."""
    torso: str = "auto"
    """Network before the heads: auto, mlp, nature, impala-shallow, impala-deep, resnet50, minatar, or
    `module:factory` or `file.py:factory` of your own."""
    hidden: tuple[Count, ...] = (64, 64)
    """Units of each layer of the MLP."""
    learner_threads: Threads = 0
    """Torch threads of the learner; 0: one."""
    learner_processes: Replicas = 0
    """Processes that share each gradient on a CPU, in systems that support it; 0: chosen by the size of the batch, at
    most one per core."""
    shares_gradient: ClassVar[bool] = False  # whether ``learner_processes`` may be more than one
    has_server: ClassVar[bool] = False  # whether ``inference`` may be a server
    hidden_heads: ClassVar[bool] = False  # whether the layers behind the torso have ``hidden`` units
    envs_on_device: ClassVar[bool] = False  # whether environments whose arrays are on a device stay there
    leaves_core: ClassVar[bool] = False  # whether one CPU core is reserved for the learner
    # fields that saved state depends on, which a resumed run keeps (not inherited)
    fixed_at_start: ClassVar[tuple[str, ...]] = ()
    # the advice beside more steps
    for_more_updates: ClassVar[str] = "smaller values of unroll, envs, total_envs or actors"
    whole_episodes: ClassVar[bool] = False  # whether an episode that has begun is played to its end

    def __post_init__(self) -> None:
        if self.learner_processes > 1 and not self.shares_gradient:
            raise UsageError(
                f"learner_processes ({self.learner_processes}) must be 0 or 1: this system shares no gradient"
            )
        for name, value in (("inference", "server"), ("double_buffer", "on")):
            if getattr(self, name) == value and not self.has_server:
                raise UsageError(
                    f"{name} is {value}, but {self.system()} has no inference server: its actors choose actions "
                    f"themselves; {', '.join(SERVED[:-1])} and {SERVED[-1]} have one"
                )
        if self.unroll > max(self.steps, SHORT):
            raise UsageError(
                f"unroll ({self.unroll} agent steps) is longer than the whole run (steps {self.steps}): no message "
                "would be sent before its end"
            )
        if not self.total_envs:
            return
        actors = self.num_actors()
        if self.total_envs % actors:
            near = [n for n in range(1, min(self.total_envs, MOST_ACTORS) + 1) if self.total_envs % n == 0]
            nearest = min(near, key=lambda n: abs(n - actors))
            raise UsageError(
                f"actors ({actors}) must divide total_envs ({counted(self.total_envs, 'environment')}), as "
                f"{nearest} does: give "
                f"another number of one of them, or envs for each actor"
            )
        object.__setattr__(self, "envs", expect(Envs, self.total_envs // actors, "envs (total_envs / actors)"))

    def __getstate__(self) -> Values:
        """Return the state to pickle, including what is known of the environment. Unpickling processes need not build
        one to read its spaces, nor repeat the registration of its id."""
        return {**vars(self), KNOWN: known(self.env), REGISTERED: registration(self.env)}

    def __setstate__(self, state: State) -> None:
        remember(state.get(KNOWN, {}))
        if (registered := state.get(REGISTERED)) is not None:
            registered.enter()
        vars(self).update({name: value for name, value in state.items() if name not in (KNOWN, REGISTERED)})

    def num_actors(self) -> int:
        """Return the number of actor processes."""
        return self.actors or self.sharing(max(1, cores() - self.leaves_core))

    def sharing(self, most: int) -> int:
        """Return the largest number of actors, up to ``most``, that divides ``total_envs``."""
        if not self.total_envs:
            return most
        return max(n for n in range(1, most + 1) if self.total_envs % n == 0)

    def kept(self) -> Values:
        """Return quantities, by name, that follow from several settings and must not change when a run is resumed."""
        return {}

    def updates(self) -> float | None:
        """Return the number of gradient updates (of rollouts, in PPO) in the run's ``steps``, or None if it is
        unknown."""
        return None

    def fitted(self, fit: Fit) -> Values:
        """Return values of the fields ``fit.free`` that suit the length of the run and the speed of the environment
        better than this configuration's own, or {}."""
        return fitted(self, fit)

    @classmethod
    def fit(cls, values: Values, free: Collection[str]) -> tuple[Values, str]:
        """Return the values of ``fitted`` for a configuration with ``values`` and a sentence about them ("" if there
        are none). The user has not set the fields ``free``. The speed counts if the environment was timed when it was
        inspected."""
        if cls.whole_episodes:  # each message is an episode
            return {}, ""
        unroll = values["unroll"]
        while "unroll" in free and unroll > values["steps"]:
            unroll //= 2
        try:
            cfg = cls(**{**values, "unroll": unroll})
        except (UsageError, ValueError):  # building the configuration reports the error
            return {}, ""
        seen = known(cfg.env).values()
        steps = math.inf if "steps" in free else cfg.steps
        pace, agents = next((s.pace for s in seen if s.pace), None), max((s.spec.agents for s in seen), default=1)
        fit = Fit(free, steps, pace, agents)
        found = cfg.fitted(fit)
        if unroll != values["unroll"]:
            found = {"unroll": unroll, **found}
        told = ", ".join(f"{name} {value} (not {values[name]})" for name, value in found.items())
        return found, told and f"{told}: {fit.reason(cfg.num_actors())}"

    @classmethod
    def left_off(cls, values: Values, free: Collection[str]) -> tuple[Values, str]:
        """Return other ``values`` of ``free`` fields and a sentence about them, if a preset's values are impossible
        here."""
        return left_off(values, free) if cls.envs_on_device else ({}, "")

    def remarks(self) -> list[str]:
        """Return sentences that a user should read before the run starts."""
        out, updates = [], self.updates()
        if updates is not None and updates < MIN_UPDATES:
            out.append(
                f"this run makes about {counted(updates, 'update')} in its {counted(self.steps, 'step')}, fewer "
                f"than {MIN_UPDATES}: "
                f"more steps, or {self.for_more_updates}, make more"
            )
        if self.inference == "auto" and self.acts_by_server():
            out.append(
                f"actions are chosen by an inference server on {self.learner_device()} (inference auto): --inference "
                "actor leaves them to the actors"
            )
        if self.double_buffer == "on" and not self.acts_by_server():
            out.append("double_buffer does nothing here: no inference server acts (--inference server)")
        most = replace(self, total_envs=0).num_actors()
        if most > self.num_actors():
            out.append(
                f"{counted(self.num_actors(), 'actor')} of {most} share {counted(self.total_envs, 'environment')} "
                f"evenly; --total-envs "
                f"{-(-self.total_envs // most) * most} would use all, and changes what an update learns from"
            )
        return out

    def idle(self) -> dict[str, str]:
        """Return the network settings that have no effect in this environment, each with the reason."""
        found = encoder.idle(self.env_spec().observations, self.torso)
        return {name: why for name, why in found.items() if name == "torso" or not self.hidden_heads}

    def learner_device(self) -> str:
        """Return the device that ``device`` means on this machine."""
        if self.device != "auto":
            return self.device
        return "cuda" if torch.cuda.is_available() else "cpu"

    def acts_by_server(self) -> bool:
        """Return True if a server chooses the actions, as ``inference`` says."""
        if self.inference != "auto" or not self.has_server:
            return self.inference == "server"
        return torch.device(self.learner_device()).type == "cuda" and self.is_large()

    def env_groups(self) -> int:
        """Return the number of groups in which an actor's environments are stepped, as ``double_buffer`` says. Raises
        UsageError if it is on and the environments cannot be halved."""
        agents = self.env_spec().agents
        whole = self.envs % (2 * agents) == 0
        if self.double_buffer == "on" and not whole:
            raise UsageError(
                f"double_buffer is on, and envs ({self.envs} of each actor) cannot be halved: give "
                f"{max(1, round(self.envs / (2 * agents))) * 2 * agents}"
            )
        on_gpu = torch.device(self.learner_device()).type == "cuda"
        return 2 if self.double_buffer == "on" or (self.double_buffer == "auto" and on_gpu and whole) else 1

    def is_large(self) -> bool:
        """Return True if the network is more than a small perceptron: it reads images, has a recurrent core or the
        user's torso, or wide layers."""
        plain = self.torso in ("auto", "mlp") and getattr(self, "core", "none") == "none" and not self.has_images()
        return not plain or max(self.hidden, default=0) > SMALL_LAYER

    def require_cpu(self) -> None:
        """Raise UsageError if ``device`` is not the CPU, for a system whose roles all compute on the CPU."""
        if self.device not in ("auto", "cpu"):
            raise UsageError(f"device is {self.device}, but every process of {self.system()} computes on the CPU")

    def system(self) -> str:
        """Return the name of the system that this configures."""
        return type(self).__module__.rpartition(".")[2].replace("_", "-")

    def env_spec(self) -> EnvSpec:
        """Return the specification of the environment under these options. Raises UsageError if an actor's environments
        do not form whole games of several agents."""
        found, envs = spec(self.env, self), getattr(self, "envs", 1)
        if envs % found.agents:
            nearest = max(1, round(envs / found.agents)) * found.agents
            raise UsageError(
                f"a game of {self.env} has {counted(found.agents, 'agent')}, each a row of envs: envs ({envs}) must "
                f"be a multiple "
                f"of it, such as {nearest}"
            )
        return found

    @classmethod
    def interface(cls, given: Mapping[str, Any]) -> str:
        """Return the interface of the environment of the ``given`` settings: one of ``settings.kinds.INTERFACES``. It
        is a picture if any part of it is, and discrete states if every part is."""
        hints, options = ranged(cls), {f.name for f in fields(EnvOptions)}
        values = {name: expect(hints[name], value, f"'{name}'") for name, value in given.items() if name in options}
        found = spec(given.get("env", cls.env), EnvOptions(**values))
        kinds = {o.kind for o in found.observations.values()}
        shows = "picture" if "image" in kinds else "vector" if "vector" in kinds else "states"
        return f"{shows}_continuous" if found.action.low else shows

    def has_images(self) -> bool:
        """Return True if the environment shows images."""
        return any(o.kind == "image" for o in self.env_spec().observations.values())

    def processes(self, worth: int) -> int:
        """Return the number of processes that share a gradient: as many as requested or, on a CPU, one per core, but at
        most ``worth``. Raises UsageError if several are requested and the device is not a CPU."""
        wanted, device = self.learner_processes, self.learner_device()
        if device == "cpu":
            return wanted or max(1, min(cores(), worth))
        if wanted > 1:
            raise UsageError(f"learner_processes ({wanted}) share a gradient on the CPU only, and device is {device}")
        return 1


def require_actions(system: str, env: EnvSpec, *kinds: str) -> None:
    """Raise UsageError unless the environment's actions are of one of ``kinds``."""
    if env.action.kind not in kinds:
        names = {"discrete": "Discrete", "multi_discrete": "MultiDiscrete", "continuous": "Box", "mixed": "mixed"}
        supported = " and ".join(names[k] for k in kinds)
        raise UsageError(f"{system} supports {supported} actions; {env.id} has {env.action}")


def messages_per_batch(batch: int, envs: int) -> int:
    """Return how many messages of ``envs`` trajectories make up a batch, or approximate ``batch`` as well as whole
    messages can (0: one message)."""
    return max(1, round(batch / envs))


def rooted(cfg: Any) -> Any:
    """Return the configuration ``cfg`` with an absolute path of its demonstrations, if they are a directory, because an
    environment may change the working directory."""
    name = "demonstrations"
    return replace(cfg, **anchored({name: getattr(cfg, name)})) if hasattr(cfg, name) else cfg


def anchored(values: Mapping[str, Any]) -> Values:
    """Return ``values`` with absolute paths of the user's files and directories, so that a run, a policy or a
    population can be resumed from another directory."""
    out = {**values, **{field: absolute(values[field]) for field in PATH_FIELDS if values.get(field)}}
    demonstrations = values.get("demonstrations")
    if demonstrations and Path(demonstrations).is_dir():  # not the ID of a dataset
        out["demonstrations"] = str(Path(demonstrations).absolute())
    return out


def require_box(cfg: SystemConfig) -> None:
    """Raise UsageError unless the environment's actions are a finite box."""
    env, system = cfg.env_spec(), cfg.system()
    require_actions(system, env, "continuous")
    if not np.isfinite((*env.action.low, *env.action.high)).all():
        space = Codec(cfg.env, cfg).action_space
        raise UsageError(
            f"{system} needs a box of actions with all bounds; {env.id} has {space}: give it such a box, by "
            "gymnasium.wrappers.TransformAction for example"
        )
