"""What every system's configuration shares: the environment, the actors, the length of the run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from shoal.api import EnvSpec, Field, Spec, UsageError
from shoal.envs import EnvOptions, spec
from shoal.settings.ranges import Count, Device, Fraction, Natural


@dataclass(frozen=True, kw_only=True)
class CommonConfig:
    """Fields of every system. Each says its unit."""

    env: str = "CartPole-v1"
    """Gymnasium id, `module:factory` or `file.py:factory` of your own, or `toy:NAME`."""
    backend: Literal["auto", "ale", "envpool", "gymnasium-vector", "gymnasium"] = "auto"
    """Which implementation steps the environments; auto: the fastest that serves."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor."""
    max_episode_steps: Count | None = None
    """Time limit (agent steps); None: the environment's own."""
    reward_clip: Literal["none", "sign", "unit"] = "none"
    """Training reward: as it is, its sign, or clipped to [-1, 1]; reported returns stay raw."""
    reward_scale: float = 1.0
    """Factor on the training reward, after clipping."""
    frame_skip: Count = 4
    """Atari: emulator frames per agent step."""
    frame_stack: Count = 4
    """Atari: frames per observation."""
    noop_max: Natural = 30
    """Atari: at most this many no-op steps at reset."""
    life_loss: bool = False
    """Atari: a lost life ends the episode in training."""
    sticky_actions: Fraction = 0.0
    """Atari: probability of repeating the previous action (Machado et al. 2018 use 0.25)."""
    actors: Natural = 0
    """Actor processes; 0: one per core."""
    envs: Count = 16
    """Environments per actor."""
    unroll: Count = 32
    """Agent steps that an actor takes between two messages."""
    steps: Count = 1_000_000
    """Length of the run (agent steps over all actors); schedules end here."""
    device: Device = "auto"
    """Learner's device: cpu, cuda, cuda:N; auto: cuda when there is one."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of convolutions; auto: bf16 where the CPU has AMX or the GPU supports it, else fp32."""
    torso: str = "auto"
    """Network: auto, mlp, nature, impala-shallow, impala-deep, or `module:factory` of your own."""
    hidden: tuple[Count, ...] = (64, 64)
    """Units of each MLP layer."""
    learner_threads: Natural = 0
    """Torch threads of the learner; 0: one."""

    def env_options(self, last_action_reward: bool = False) -> EnvOptions:
        """The part that the environment needs."""
        return EnvOptions(
            backend=self.backend,
            reward_clip=self.reward_clip,
            reward_scale=self.reward_scale,
            kwargs=self.env_kwargs,
            max_episode_steps=self.max_episode_steps,
            frame_skip=self.frame_skip,
            stack=self.frame_stack,
            noop_max=self.noop_max,
            life_loss=self.life_loss,
            sticky_actions=self.sticky_actions,
            last_action_reward=last_action_reward,
        )

    def num_actors(self) -> int:
        return self.actors or cores()

    def learner_device(self) -> str:
        if self.device != "auto":
            return self.device
        return "cuda" if torch.cuda.is_available() else "cpu"


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sharing(wanted: int, device: str, worth: int) -> int:
    """How many processes share a gradient: ``wanted``; if that is 0, on a CPU, one per core, but no more than are
    worth it. Raises UsageError where several are wanted and none but a CPU's can share."""
    if device == "cpu":
        return wanted or max(1, min(cores(), worth))
    if wanted > 1:
        raise UsageError(f"learner_processes ({wanted}) share a gradient on the CPU only, and device is {device}")
    return 1


def env_spec(cfg: CommonConfig, last_action_reward: bool = False) -> EnvSpec:
    """The environment's spec under ``cfg``."""
    return spec(cfg.env, cfg.env_options(last_action_reward))


def require_actions(system: str, env: EnvSpec, *kinds: str) -> None:
    """Raise UsageError unless the environment's actions are of one of ``kinds``."""
    if env.action.kind not in kinds:
        names = {"discrete": "Discrete", "multi_discrete": "MultiDiscrete", "continuous": "Box"}
        supported = " and ".join(names[k] for k in kinds)
        raise UsageError(f"{system} supports {supported} actions; {env.id} has {env.action}")


def params_spec(network: Callable[[], nn.Module]) -> Spec:
    """The fields of a params channel for ``network()``, built without allocating its parameters."""
    with torch.device("meta"):
        state = network().state_dict()
    return {k: Field(tuple(v.shape), str(v.dtype).removeprefix("torch."), axis=0) for k, v in state.items()}


def messages_per_batch(batch: int, envs: int) -> int:
    """How many messages of ``envs`` trajectories are read at a time to learn from ``batch`` (0: one message)."""
    if batch and batch % envs and envs % batch:
        raise UsageError(f"batch ({batch} trajectories) must be a multiple or a divisor of envs ({envs})")
    return max(1, batch // envs)
