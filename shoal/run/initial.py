"""Initial parameters from another run (``init_from``): those of networks and normalisers, without any other state."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from shoal.api import Context, Role, ShoalError, Spec, Tensors, UsageError
from shoal.paths import shown
from shoal.program import Program
from shoal.records.damage import read_json, require_run
from shoal.records.param_files import load_params
from shoal.systems.es.evolution import TASK
from shoal.untrusted import brief, excerpt, require_plain
from shoal.zoo import located

# tensors that a new run never takes over: its task, the range of its returns, the scale of its rewards
RUN_SPECIFIC_PREFIXES = (TASK, "returns.", "rewards.")
SETTINGS = {  # the settings on which these tensors and their shapes depend
    "norms": "normalise_obs", "core": "core, core_size or core_layers", "critic": "separate_critic or hidden",
    "encoder": "torso, hidden, or what is observed", "policy": "hidden, or the actions", "head": "dueling or hidden",
    "pixel_control": "pixel_control", "reward_prediction": "reward_prediction",
}  # fmt: skip
log = logging.getLogger("shoal.initial")


def read(source: str | Path, trust: bool = False) -> Tensors:
    """Return the last parameters of a run's directory, or those in a file of ``Policy.save``, of a run or of the zoo
    (``zoo:NAME``). Imports nothing that these name. Raises UsageError if there are none. trust: as in ``Run.open``."""
    from shoal.run.population.training import best_member, is_population

    path = located(source)
    if path.is_dir():
        require_run(path)
        require_plain(path, trust)
        path = best_member(path) if is_population(path) else path
        facts = read_json(path / "config.json", "run")
        channel = facts.get("policy")
        if not isinstance(channel, (str, type(None))):
            raise ShoalError(f"{shown(path / 'config.json')} is damaged: 'policy' is {brief(channel)}")
        return load_params(path, channel)[1]
    if not path.is_file():
        raise UsageError(
            f"init_from expects a run's directory or a file that Policy.save wrote; there is no '{source}'"
        )
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise UsageError(f"init_from: '{source}' is no safetensors file, or damaged: {excerpt(error)}") from None


def begin_with(program: Program, params: Tensors, source: str | Path) -> None:
    """Make ``program``, which has not been launched, begin with ``params``. Raises UsageError that names the first
    tensor that does not match its policy's channel."""
    channel = program.policy_channel()
    params = {name: tensor for name, tensor in params.items() if not name.startswith(RUN_SPECIFIC_PREFIXES)}
    _check(
        params,
        {name: field for name, field in channel.spec.items() if not name.startswith(RUN_SPECIFIC_PREFIXES)},
        source,
    )
    # a server may write initial parameters for other roles, which are not known here
    writers = () if channel.divided else {role.name for role, _ in program.ends(channel, "write")}
    program.roles = [
        replace(role, make=_Beginning(role.name, role.make, params, needed=role.name in writers))
        for role in program.roles
    ]


def _check(params: Tensors, wanted: Spec, source: str | Path) -> None:
    for name, field in wanted.items():
        if name not in params:
            raise _unfit(source, name, f"it has no '{name}' {list(field.shape)}")
        if tuple(params[name].shape) != tuple(field.shape):
            raise _unfit(
                source, name, f"'{name}' is {list(params[name].shape)} there and {list(field.shape)} here"
            )  # fmt: skip
    if more := [name for name in params if name not in wanted]:
        raise _unfit(source, more[0], f"it has '{more[0]}', which this network lacks")


def _unfit(source: str | Path, tensor: str, why: str) -> UsageError:
    setting = SETTINGS.get(tensor.partition(".")[0])
    return UsageError(f"init_from '{source}' does not fit: {why}" + (f" (see {setting})" if setting else ""))


class _Beginning:
    """Makes a role with the initial parameters in its context. needed: whether the role must load them."""

    def __init__(self, name: str, make: Callable[..., Role], params: Tensors, needed: bool) -> None:
        self.name, self.make, self.params, self.needed = name, make, params, needed

    def __call__(self, context: Context, **ports: Any) -> Role:
        fill = _Fill(self.params)
        context.initial = fill
        role = self.make(context, **ports)
        if self.needed and not fill.used:
            raise UsageError(
                f"the role '{self.name}' takes no parameters to begin with: it does not call shoal.building.begin"
            )
        return role


class _Fill:
    def __init__(self, params: Tensors) -> None:
        self.params, self.used = params, False

    @torch.no_grad()
    def __call__(self, nets: torch.nn.Module) -> None:
        held = nets.state_dict()
        for name, tensor in self.params.items():
            held[name].copy_(tensor)
        self.used = True
        if lacking := [name for name in held if name not in self.params and not name.startswith(RUN_SPECIFIC_PREFIXES)]:
            log.warning(
                "init_from has no '%s' (nor %d more of the %d tensors of this network): they begin anew", lacking[0],
                len(lacking) - 1, len(held),
            )  # fmt: skip
