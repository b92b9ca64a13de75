"""The description of an exported policy: where its inputs come from, and how its outputs become actions."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces as gs
from torch import Tensor

from shoal.api import MASK, Observation
from shoal.envs.spaces import integer_scale
from shoal.policy import Policy
from shoal.policy.export_module import ActionPart, PolicyModule
from shoal.types import Values


def describe(policy: Policy, module: PolicyModule, example: tuple[Tensor, ...], outputs: list[Tensor]) -> Values:
    """Return what ``model.json`` says of inputs, outputs, and how they relate to the environment."""
    spaces = policy.codec.parts
    leaves = dict(zip(module.actions(), policy.codec.action_leaves, strict=True))
    inputs = []
    for name, tensor in zip(module.inputs(), example, strict=True):
        entry: Values = {"name": name, **_array(tensor)}
        if name in spaces:
            path, space = spaces[name]
            entry |= {"path": path, "space": str(space), "from": _conversion(space, policy.spec.observations[name])}
        else:
            entry["from"] = _FROM.get(name, "output `next/" + name.removeprefix("state/") + "` of the step before")
        inputs.append(entry)
    return {
        "environment": policy.cfg.env,
        "observation_space": str(policy.codec.observation_space),
        "action_space": str(policy.codec.action_space),
        "inputs": inputs,
        "outputs": [
            {
                "name": n,
                **_array(t),
                **({"path": list(leaves[n].path), "space": str(leaves[n].space)} if n in leaves else {}),
            }
            for n, t in zip(module.outputs(), outputs, strict=True)
        ],
        "recurrent": bool(module.state_names),
        "action": f"{_guess(module)}, as the environment takes it (a batch of them). " + _sampling(module),
        "normaliser": "inside the model" if len(getattr(module.nets, "norms", ())) else "none",
    }


_FROM = {
    MASK: "the environment's info['action_mask'], as truth values: what is false is not chosen, and its value or logit "
    "is minus infinity",
    "first": "true for the first observation of an episode: the state is then taken as zero",
    "obs/last_action": "zeros at an episode's first observation; then the action before: of a discrete space its index "
    "from 0, of a Box the flat, unclipped values in the policy's own units, those of `mean`",
    "obs/last_reward": "0 at an episode's first observation; then the reward of the step before, as used in training",
}


def _array(tensor: Tensor) -> Values:
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": ["batch", *tensor.shape[1:]]}


def _guess(module: PolicyModule) -> str:
    names = [f"`{name}`" for name in module.actions()]
    if len(names) == 1:
        return f"{names[0]} is the best guess"
    return f"{', '.join(names[:-1])} and {names[-1]} together are the best guess, each a part"


def _sampling(module: PolicyModule) -> str:
    if module.deterministic:
        return "The policy is deterministic; while it was trained, Gaussian noise was added."
    if module.q_learning:
        return "`q` are the action values it is the argmax of."
    action, choices = module.chosen, len(module.chosen.sizes)
    if action.kind == "discrete":
        drawn = "a softmax over the logits"
    else:
        drawn = f"a softmax over each part of the logits, of {list(action.sizes)} values in this order"
    said = [f"To draw one: {drawn}." if not action.low else f"To draw its choices: {drawn}."] if choices else []
    if action.low:
        said.append(f"To draw {'its numbers' if choices else 'one'}: x = mean + exp(log_std) * noise from N(0, 1).")
    for name, part in zip(module.actions(), module.parts, strict=True):
        said.append(_turned_back(name, part, choices))
    return " ".join(said)


def _turned_back(name: str, part: ActionPart, choices: int) -> str:
    """Say how what was drawn becomes the output ``name``; ``choices``: of the whole action."""
    first, last = part.columns[0], part.columns[-1]
    if part.box is None:
        which = f"choice {first}" if first == last else f"choices {first} to {last}"
        start = part.offset.tolist()
        return f"`{name}`: {which}" + (f", plus the space's start {start}" if any(start) else "") + "."
    box, which = part.box, f"x[{first - choices}:{last - choices + 1}]"
    if box.same:
        return f"`{name}`: {which}, reshaped and clipped to the space."
    return (
        f"`{name}`: {which}, clipped from {box.low.tolist()} to {box.high.tolist()}; then {box.middle.tolist()} + "
        f"{box.half.tolist()} * it, reshaped and clipped to the space."
    )


def _conversion(space: Any, leaf: Observation) -> str:
    if leaf.kind == "mask":
        return "as truth values: what is false is not chosen, and its value or logit is minus infinity"
    if isinstance(space, gs.Discrete):
        return f"minus {space.start}, as [1]" if space.start else "as [1]"
    if isinstance(space, (gs.MultiDiscrete, gs.MultiBinary)) or leaf.kind == "one_hot":
        start = np.ravel(getattr(space, "start", 0)).tolist()
        return "flattened" + (f", minus {start}" if any(start) else "")
    if leaf.kind == "image" and (space.low.min(), space.high.max()) != (0, 255):
        spread = f"values from {space.low.min()} to {space.high.max()} spread over 0 to 255 and rounded, then "
        return spread + _turned(space, leaf)
    if leaf.kind == "vector" and (scale := integer_scale(space)) is not None:
        divisors = np.unique(scale).tolist()
        return f"divided by {divisors[0] if len(divisors) == 1 else scale.tolist()}"
    return _turned(space, leaf)


def _turned(space: Any, leaf: Observation) -> str:
    if leaf.kind == "image" and tuple(space.shape) != leaf.shape:
        if tuple(space.shape[2:]) == leaf.shape[1:]:
            return "[S, C, H, W] with its first two axes joined"
        return {
            2: "[H, W] with a first axis added",
            3: "[H, W, C] turned to [C, H, W]",
            4: "[S, H, W, C] turned to [S, C, H, W] and its first two axes joined",
        }[len(space.shape)]
    return "as it is"
