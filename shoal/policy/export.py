"""Writes a policy as a small directory that is used without Shoal: ONNX, TorchScript or safetensors."""

from __future__ import annotations

import copy
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.api import ShoalError, UsageError
from shoal.extras import pip_install
from shoal.held import held
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.cem_network import CEMNetwork
from shoal.nets.dpg_network import DPGNetwork
from shoal.nets.evolution_policy import EvolutionPolicy
from shoal.nets.q_network import QNetwork
from shoal.nets.recurrent_q_network import RecurrentQNetwork
from shoal.paths import require_new, shown
from shoal.policy import Policy
from shoal.policy.export_description import describe
from shoal.policy.export_module import PolicyModule
from shoal.types import Values
from shoal.untrusted import excerpt, to_write

FORMAT = 1
FILES = {
    "onnx": "model.onnx", "torch-export": "model.pt2", "torchscript": "model.pt", "safetensors": "model.safetensors",
}  # fmt: skip
EXAMPLES = 64  # rows of example.npz
SEARCHED = 0.75  # share of the examples in which a search must end at the same action
TOLERANCE = 1e-5  # of the written model on the examples, absolute, or relative where a value is above 1


def export(policy: Policy, to: str, out: Path, about: Values | None = None) -> Path:
    """Write ``out`` (a new directory): the model in float32, ``model.json``, which says how to use it, and
    ``example.npz``, inputs with the outputs they must give. ``about``: facts to put into ``model.json``.

    Raises UsageError for an unknown format, a directory that holds something, or a policy whose network is of the
    user's own kind; ShoalError if the written model gives other numbers than the policy.
    """
    if to not in FILES:
        raise UsageError(f"unknown format '{to}': expected one of {', '.join(FILES)}")
    require_new(out)
    module, example = policy_module(policy), _example(policy, EXAMPLES)
    writers = {"onnx": _onnx, "torch-export": _torch_export, "torchscript": _torchscript, "safetensors": _safetensors}
    write = writers[to]
    if to == "onnx":
        _require_onnx()
    with _whole(out) as folder:
        # of an LSTM, torch's first call in a process is now and then off by 3e-5 in its first row
        _run(module, example)
        outputs = _run(module, example)
        write(module, tuple(t[:2] for t in example), folder / FILES[to])
        _check(to, folder / FILES[to], module, example, outputs)
        facts = {"format": FORMAT, "file": FILES[to], **(about or {}), **describe(policy, module, example, outputs)}
        (folder / "model.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        named: Values = {f"input:{n}": t.numpy() for n, t in zip(module.inputs(), example, strict=True)}
        named |= {f"output:{n}": t.numpy() for n, t in zip(module.outputs(), outputs, strict=True)}
        np.savez(folder / "example.npz", **named)
    return out


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """A folder whose files go to ``out`` at the end of the block, or vanish where that is not reached."""
    with to_write(out) as place:
        folder = place.with_name(f".{place.name}.tmp")
        shutil.rmtree(folder, ignore_errors=True)
        if folder.is_symlink():
            beside = out.with_name(folder.name)
            raise UsageError(f"'{shown(beside)}' is a symbolic link, where the export is put together: remove it")
        folder.mkdir()
        try:
            yield folder
            with held(place, make=True) as there:
                for file in folder.iterdir():
                    os.replace(file, there / file.name)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def policy_module(policy: Policy) -> PolicyModule:
    """The policy's network in float32, whatever it was trained in."""
    nets = getattr(policy.agent, "nets", None)
    if not isinstance(nets, (ActorCritic, QNetwork, RecurrentQNetwork, DPGNetwork, CEMNetwork, EvolutionPolicy)):
        raise UsageError("only policies with Shoal's own networks (such as ActorCritic or QNetwork) can be exported")
    nets = copy.deepcopy(nets).cpu().eval().requires_grad_(False)
    for name, tensor in nets.state_dict(keep_vars=True).items():
        tensor.data = policy.params[name].cpu().clone()  # an agent may hold its own rounded
    if isinstance(nets, EvolutionPolicy):
        nets.refer()
    else:
        nets.precision, nets.device = "fp32", "cpu"
    return PolicyModule(nets, list(policy.spec.observations), policy.spec.action, policy.codec.action_leaves).eval()


# --------------------------------------------------------------------------------------- formats
def _torchscript(module: PolicyModule, example: tuple[Tensor, ...], path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TorchScript is deprecated; what is traced is checked below
        torch.jit.save(torch.jit.trace(module, example, check_trace=False), str(path))  # type: ignore[no-untyped-call]


def _torch_export(module: PolicyModule, example: tuple[Tensor, ...], path: Path) -> None:
    with warnings.catch_warnings(), _quiet("torch.export"):
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(module, example, dynamic_shapes=_dynamic(example), strict=False)
            for part in program.graph_module.modules():
                for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
                    for name in ("stack_trace", "nn_module_stack", "source_fn_stack"):
                        node.meta.pop(name, None)  # with this machine's paths
            torch.export.save(program, path)
        except Exception as error:  # whatever of a network this version cannot follow or write
            said = excerpt(str(error).strip().partition("\n")[0])
            raise ShoalError(
                f"torch.export of PyTorch {torch.__version__} cannot take this policy ({said}): a newer PyTorch may, "
                "and --to torchscript does"
            ) from error


def _dynamic(example: tuple[Tensor, ...]) -> Any:
    """Every input's first axis is the batch, of any size."""
    batch = torch.export.Dim("batch", max=2**31 - 1)  # without a bound, torch 2.6 finds one size that does not fit
    return (tuple({0: batch} for _ in example),)


def _onnx(module: PolicyModule, example: tuple[Tensor, ...], path: Path) -> None:
    with warnings.catch_warnings(), _quiet("torch.onnx"):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module, example, dynamo=True, verbose=False, input_names=module.inputs(), output_names=module.outputs(),
            dynamic_shapes=_dynamic(example),
        )  # fmt: skip
    assert program is not None
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # stack traces, with this machine's paths
    program.save(str(path))


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise UsageError(f"exporting to ONNX needs onnx and onnxscript: {pip_install('onnx')}") from None


def _safetensors(module: PolicyModule, example: tuple[Tensor, ...], path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        # each a tensor of its own, of weights that are tied as well: the format knows no sharing
        save_file({k: v.contiguous().clone() for k, v in module.nets.state_dict().items()}, path)
    except SafetensorError as error:
        raise ShoalError(f"'{path}' cannot be written: {error}") from None


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Without the log's warnings (that torchvision is not installed)."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


# ----------------------------------------------------------------------------------------- check
def _example(policy: Policy, rows: int) -> tuple[Tensor, ...]:
    """Inputs of the right kinds: drawn at random, states of a network that has run for a step."""
    rng = np.random.default_rng(0)
    out: list[Tensor] = []
    array: np.ndarray
    for leaf in policy.spec.observations.values():
        if leaf.kind == "mask":
            array = rng.random((rows, *leaf.shape)) < 0.5
            array[:, np.cumsum((0, *policy.spec.action.sizes[:-1]))] = True  # something of each part
        elif leaf.kind == "one_hot":
            array = np.stack([rng.integers(0, n, rows) for n in leaf.size], -1).reshape(rows, *leaf.shape)
        elif leaf.kind == "image":
            array = rng.integers(0, 256, (rows, *leaf.shape))
        else:
            array = rng.normal(size=(rows, *leaf.shape))
        out.append(torch.from_numpy(array.astype(leaf.dtype)))
    state = policy.agent.initial_state(rows)
    if state:
        first = torch.from_numpy(rng.random(rows) < 0.25)
        out += [first, *(torch.from_numpy(rng.uniform(-1, 1, v.shape).astype(np.float32)) for v in state.values())]
    return tuple(out)


@torch.no_grad()
def _run(module: Any, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    return list(module(*inputs))


def _check(to: str, path: Path, module: PolicyModule, inputs: tuple[Tensor, ...], expected: list[Tensor]) -> None:
    """Load what was written and compare, with other batch sizes than it was made with."""
    if to == "safetensors":
        return
    if to == "torchscript":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded: Any = torch.jit.load(str(path))  # type: ignore[no-untyped-call]
        found = [_run(loaded, tuple(t[:n] for t in inputs)) for n in (1, EXAMPLES)]
    elif to == "torch-export":
        loaded = torch.export.load(path).module()
        found = [_run(loaded, tuple(t[:n] for t in inputs)) for n in (1, EXAMPLES)]
    else:
        try:
            import onnxruntime
        except ImportError:
            return
        session = onnxruntime.InferenceSession(str(path))
        found = []
        for n in (1, EXAMPLES):
            feed = {name: t[:n].numpy() for name, t in zip(module.inputs(), inputs, strict=True)}
            found.append([torch.from_numpy(np.asarray(a)) for a in session.run(module.outputs(), feed)])
    for outputs in found:
        for name, got, want in zip(module.outputs(), outputs, expected, strict=True):
            want = want[: len(got)]
            if name in module.actions() and got.dtype == torch.int64:
                continue  # of two values equal up to rounding either may win
            if isinstance(module.nets, CEMNetwork):  # so it is with the actions that it tries
                same = torch.isclose(got, want, rtol=TOLERANCE, atol=TOLERANCE).flatten(1).all(1)
                if len(same) == 1 or same.float().mean() >= SEARCHED:
                    continue
            if not torch.allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE):
                error = float((got - want).abs().max())
                raise ShoalError(f"'{path}' gives other numbers than the policy: '{name}' differs by {error:.3g}")
