"""Facts that a role reports when training has diverged."""

from __future__ import annotations

from shoal.api import Context, Diverged, Tensors


def explain(error: Diverged, ctx: Context, update: int, batch: Tensors, params: Tensors) -> None:
    """Give ``error`` what ``records.dumps`` writes for whoever looks for the cause: who diverged at which update, what
    it last learned from, and the parameters."""
    role = ctx.role if ctx.replicas == 1 else f"{ctx.role}-{ctx.index}"
    error.facts |= {"role": role, "update": update}
    error.tensors = {f"batch/{k}": v for k, v in batch.items()} | {f"params/{k}": v for k, v in params.items()}
