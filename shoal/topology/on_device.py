"""The program of an actor-critic whose environments are on its learner's device: one role, and its parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from shoal.api import Context, Learner, ParamsReader, ParamsWriter, UsageError
from shoal.envs.on_device import UNCHANGED, device_envs
from shoal.program import Program
from shoal.roles.device_rollouts import DeviceLearnerRole, DeviceRollouts
from shoal.topology.channels import Extras, Network, parameters, trajectories
from shoal.topology.config import SystemConfig
from shoal.topology.roles import begin


def on_device(
    name: str, cfg: SystemConfig, network: Network, learn: Callable[[Any, Context], Learner], extras: Extras
) -> Program:
    """Return the program of one role that plays all ``actors`` x ``envs`` environments and learns from them, ``unroll``
    steps at a time, without copies to the host or between processes.

    learn: makes the learner of ``network(cfg, device)``. extras: fields stored beside each action. Raises UsageError
    for options that change observations or rewards, which environments on a device do not support.
    """
    for option, plain in UNCHANGED.items():
        if (found := getattr(cfg, option)) != plain:
            raise UsageError(
                f"{option} is {found}, but {cfg.env} lives on the learner's device, where it must be {plain}"
            )
    if cfg.inference == "server":
        raise UsageError(f"inference is server, but {cfg.env} lives on the learner's device, which chooses its actions")
    device, columns = cfg.learner_device(), cfg.num_actors() * cfg.envs
    whole = replace(cfg, total_envs=0, actors=1, envs=columns)
    spec = trajectories(whole, network, extras)
    p = Program(name)
    params = p.channel(parameters("params", lambda: network(cfg)))

    def make(ctx: Context, params: ParamsWriter, own: ParamsReader) -> DeviceLearnerRole:  # each channel needs a reader
        torch.manual_seed(ctx.seed)
        nets = begin(ctx, network(cfg, device).to(device))
        learner = learn(nets, ctx)
        rollouts = DeviceRollouts(ctx, device_envs(cfg.env, cfg, columns, device), nets, spec)
        return DeviceLearnerRole(ctx, learner, rollouts, params)

    p.role(
        "learner", make, threads=cfg.learner_threads or 1, device=device, params=params.writer(), own=params.reader()
    )
    return p
