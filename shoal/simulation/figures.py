"""What a simulation says of a program: rates, shares of time, lags, traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from shoal.metering.bottleneck import bottleneck
from shoal.types import Values

WORDS = {"params": "parameters", "queue": "trajectories", "replay": "items of the replay", "reduce": "gradients"}

WAITING = "waiting"  # the bottleneck where every role waits for another most of the time


@dataclass(frozen=True)
class Figures:
    """Of the simulated time that was measured.

    rates: counts a second (``env_steps``, ``updates``, ...); shares: role -> phase -> share of its time; fill: queue ->
    share of its slots in use; lag: role -> median and 95th percentile of the gradient steps that the parameters an item
    was made with were behind; samples_per_insert: by replay; sent: bytes a second out of each node, received: into it;
    cores: share of each node's that is at work; links: share of each node's bandwidth in use, the busier way;
    traffic: the kind of channel that most bytes on the busiest link are of; empty if there are none.
    """

    seconds: float
    rates: Mapping[str, float]
    shares: Mapping[str, Mapping[str, float]]
    fill: Mapping[str, float]
    lag: Mapping[str, tuple[float, float]]
    samples_per_insert: Mapping[str, float]
    sent: tuple[float, ...]
    received: tuple[float, ...]
    cores: tuple[float, ...]
    links: tuple[float, ...]
    traffic: str

    @property
    def steps(self) -> float:
        """Environment steps a second."""
        return self.rates.get("env_steps", 0.0)

    @property
    def updates(self) -> float:
        return self.rates.get("updates", 0.0)

    def policy_lag(self) -> tuple[float, float] | None:
        """Median and 95th percentile, of the role whose items are of policies."""
        return next(iter(self.lag.values()), None)

    def bottleneck(self) -> str:
        """What sets the pace, in words: a link, all cores of a node, or the role that waits least, and its work."""
        node = max(range(len(self.links)), key=lambda n: self.links[n])
        if self.links[node] > 0.9:
            way = "out of" if self.sent[node] >= self.received[node] else "into"
            return (
                f"network (link {way} node {node}: {self.links[node]:.0%} in use, most of it by {WORDS[self.traffic]})"
            )
        slow = bottleneck(self.shares)
        return self._longest_wait() if slow is None else str(slow)

    def _longest_wait(self) -> str:
        """Return which role waits longest for which channel, in words, where every role waits most of the time."""
        waits = {
            (share, role, phase.removeprefix("wait:"))
            for role, phases in self.shares.items()
            for phase, share in phases.items()
            if phase.startswith("wait:")
        }
        if not waits:
            return "not known"
        share, role, channel = max(waits)
        return f"{WAITING} ({role}: {share:.0%} of its time for the channel '{channel}')"

    def limit(self) -> str:
        """The kind of the bottleneck: network, learner, actor, inference, replay, waiting or the name of a role."""
        return self.bottleneck().partition("-bound")[0].partition(" (")[0]

    def as_json(self) -> Values:
        return {**asdict(self), "bottleneck": self.bottleneck()}


def quantiles(counts: Mapping[float, int], *shares: float) -> tuple[float, ...]:
    """The values below which ``shares`` of what was counted lie."""
    total, out = sum(counts.values()), []
    for share in shares:
        left = share * total
        for value in sorted(counts):
            left -= counts[value]
            if left <= 0:
                break
        out.append(float(value))
    return tuple(out)
