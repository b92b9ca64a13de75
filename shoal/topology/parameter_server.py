"""Configuration and channels of systems with a parameter server: learners send gradients and receive parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch

from shoal.api import UNIT, Context, ParamsWriter, PartsReader, PartsWriter, Reader, UsageError, bounds
from shoal.learning.algorithm import Algorithm
from shoal.learning.optimiser import OptimiserConfig
from shoal.learning.parameter_server import GRADIENT, OutlierFilter, RemoteLearner, Shard, gradient_spec
from shoal.program import Channel, Program
from shoal.roles.server import GradientRole, ServerRole
from shoal.settings.ranges import Count, Natural, NonNegative, OnlyWith, Parts
from shoal.settings.schedule import schedules
from shoal.topology.channels import parameters, shapes
from shoal.topology.roles import begin


@dataclass(frozen=True, kw_only=True)
class ServerConfig(OptimiserConfig):
    """Settings of a parameter server and its learners."""

    only_with: ClassVar[OnlyWith] = {"max_lag": ("pieces", 1)}

    learners: Parts = 2
    """Learner processes, which compute gradients only."""
    shards: Parts = 2
    """Processes of the parameter server; each owns an equal part of the parameters and of the optimiser."""
    n_fetch: Count = 1
    """Batches between two fetches of the server's parameters by a learner."""
    n_push: Count = 1
    """Batches whose gradients a learner adds up before it sends them."""
    pieces: Parts = 1
    """Gradients of the newest parameters that the server averages into one update; others are dropped. 1: each gradient
    is an update."""
    max_lag: Natural = 0
    """Largest lag of a gradient in updates; a later gradient is dropped. 0: none is dropped."""
    outliers: NonNegative = 0.0
    """Standard deviations above the mean loss beyond which a batch is an outlier and its gradient is not sent; 0: no
    filter."""


class ParameterServer:
    """Adds the channels of a parameter server to ``p``: learners -> gradients -> server -> parameters -> learners.
    ``learners`` and ``server`` add the roles.

    network: makes the network; learner 0's is the initial one. progress: returns the share of the run that is done
    after a number of updates, for schedules. name: of the channel of parameters. gradients, params: the channels; other
    roles may read the latter as well.
    """

    def __init__(
        self, p: Program, cfg: ServerConfig, network: Callable[[], Any],
        progress: Callable[[Context, int], float] | None = None, name: str = "params",
    ) -> None:  # fmt: skip
        self._p, self._cfg, self._network, self._progress = p, cfg, network, progress
        if progress is None and (planned := schedules(cfg)):
            raise UsageError(
                f"nobody says how far this run is, but {', '.join(f'{k} is {v}' for k, v in planned.items())}"
            )
        message = gradient_spec(shapes(network))
        self._size = message[GRADIENT].shape[0]
        self.gradients = p.channel(Channel("gradients", "queue", message, capacity=1, divided=UNIT))
        self.params = p.channel(parameters(name, network, divided=UNIT))

    def learners(
        self, algorithm: Callable[[Any, Context], Algorithm], batches: Channel, *, count: int = 1, device: str = "cpu",
        threads: int = 1, role: type[GradientRole] = GradientRole,
    ) -> None:  # fmt: skip
        """Add the role ``learner``, made by ``role``. algorithm: made from its network. count: items of ``batches`` in
        a batch."""
        cfg, network = self._cfg, self._network

        def make(ctx: Context, params: PartsReader, gradients: PartsWriter, **ports: Reader) -> GradientRole:
            (reader,) = ports.values()
            torch.manual_seed(ctx.seed)
            learner = RemoteLearner(
                algorithm(begin(ctx, network().to(device)), ctx), max_norm=cfg.max_grad_norm, device=device,
                outliers=OutlierFilter(cfg.outliers) if cfg.outliers else None, progress=self._done(ctx),
            )  # fmt: skip
            return role(ctx, learner, reader, params, gradients, cfg.n_fetch, cfg.n_push)

        into: Any = {batches.name: batches.reader(count)}
        self._p.role(
            "learner", make, replicas=cfg.learners, on_failure="restore", threads=threads, device=device,
            params=self.params.reader(), gradients=self.gradients.writer(), **into,
        )  # fmt: skip

    def server(self, role: Callable[..., ServerRole] = ServerRole, memory: int = 0, **ports: Any) -> None:
        """Add the role ``server``, made by ``role``. memory: bytes that each replica needs beside its channels. ports:
        further ports, passed by keyword."""
        cfg, size, spec = self._cfg, self._size, self.params.spec

        def make(ctx: Context, gradients: Reader, params: ParamsWriter, **others: Any) -> ServerRole:
            shard = Shard(cfg, spec, *bounds(size, ctx.replicas, UNIT)[ctx.index], self._done(ctx))
            return role(ctx, shard, gradients, params, cfg.max_lag or None, cfg.pieces, **others)

        self._p.role(
            "server", make, replicas=cfg.shards, on_failure="restore", memory=memory, gradients=self.gradients.reader(),
            params=self.params.writer(), **ports,
        )  # fmt: skip

    def _done(self, ctx: Context) -> Callable[[int], float] | None:
        return partial(self._progress, ctx) if self._progress is not None else None
