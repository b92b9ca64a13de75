"""D4PG: the roles of Ape-X DPG, with a critic that is a distribution of the n-step return.

Barth-Maron et al. 2018, "Distributed Distributional Deterministic Policy Gradients".
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.api import Batch, Context, Tensors, Update, UsageError
from shoal.learning.learner import SGDLearner
from shoal.nets.dpg_network import DPGNetwork, Returns
from shoal.ops import (
    categorical_cross_entropy,
    categorical_mean,
    categorical_outside,
    categorical_projection,
    mixture_cross_entropy,
    mixture_mean,
    mixture_sample,
)
from shoal.program import Program
from shoal.settings.ranges import Finite, OnlyWith, Parts
from shoal.systems import apex_dpg
from shoal.systems.apex_dpg import DPG, Expected
from shoal.systems.d4pg.possible_returns import require_atoms, require_order, return_range
from shoal.topology.config import Preset, Presets, require_box
from shoal.topology.replayed import descent
from shoal.types import State, Values

EDGES = 0.05  # probability on the outermost atoms from which a user is told
CLIPPED = 0.01  # probability of targets beyond them, without which all is as it should be
SETTLED = 1_000  # updates before that: a new critic's distribution is as wide as its range
RARE = -20.0  # smallest difference of a logit of a new critic from its largest
INITIAL_SPREAD = 0.03  # deviation of a new mixture, relative to half the range
FLOOR = 1e-4  # of a component's deviation, relative to half the range: its likelihood stays bounded
log = logging.getLogger("shoal.dpg")


@dataclass(frozen=True, kw_only=True)
class Config(apex_dpg.Config):
    """D4PG."""

    fixed_at_start: ClassVar[tuple[str, ...]] = ("critic", "atoms", "components", "v_min", "v_max")
    only_with: ClassVar[OnlyWith] = {
        **dict.fromkeys(("v_min", "v_max", "reward_range"), ("critic", "categorical", "mixture")),
        "atoms": ("critic", "categorical"), "components": ("critic", "mixture"),
        "mixture_samples": ("critic", "mixture"),
    }  # fmt: skip

    critic: Literal["categorical", "mixture", "mean"] = "categorical"
    """What the critic predicts of the return: a categorical distribution, a mixture of Gaussians, or its mean only."""
    v_min: Finite | None = None
    """Smallest discounted return of the distribution; none: from `reward_range`, or the rewards of random play."""
    v_max: Finite | None = None
    """Largest discounted return of the distribution; none: from `reward_range`, or the rewards of random play."""
    reward_range: tuple[Finite, Finite] | None = None
    """Smallest and largest reward of the environment, from which the range of returns follows; none: those of random
    play."""
    atoms: Parts = 51
    """Returns of the categorical distribution, evenly spaced."""
    components: Parts = 5
    """Gaussians of the mixture."""
    mixture_samples: Parts = 32
    """Samples of the target from which the mixture's cross-entropy is estimated."""
    action_gradient_clip: float | None = None
    prioritised: bool = False
    importance_exponent: float = 1.0
    evict: Literal["proportional", "fifo"] = "fifo"

    def idle(self) -> dict[str, str]:
        """Return the idle settings, those of the range of returns among them."""
        given = self.v_min is not None and self.v_max is not None
        return {**super().idle(), "reward_range": "v_min and v_max are given"} if given else super().idle()

    def kept(self) -> Values:
        """The range of returns."""
        if self.critic == "mean":
            return {}
        low, high, _ = self.return_range()
        return {"returns": {"from": low, "to": high}}

    def return_range(self) -> tuple[float, float, str]:
        """Smallest and largest discounted return, and a sentence on where they came from."""
        return return_range(self.env, self, self.gamma, self.v_min, self.v_max, self.reward_range)

    def returns(self) -> Returns:
        """Return how the critic describes a return. A range not yet known does not matter to actors: parameters bring
        it."""
        low, high = self.v_min or 0.0, self.v_max or 0.0
        if self.critic == "categorical":
            return Categorical(low, high, self.atoms)
        return Mixture(low, high, self.components, self.mixture_samples) if self.critic == "mixture" else Expected()


PAPER: Preset = dict(  # section 4 and algorithm 1; the range of returns is set for each task
    actors=32, envs=1, unroll=50, steps=500_000_000, hidden=(400, 300), policy_hidden=(300, 200), late_action=True,
    layer_norm=True, noise=0.3, n_step=5, learning_rate=1e-4, batch=256, samples_per_insert=0.0, replay=1_000_000,
    min_replay=10_000, target_period=100, prioritised=True, critic="categorical", atoms=51,
)  # fmt: skip
CLASSIC: Preset = {**apex_dpg.CLASSIC}
VECTOR_CONTINUOUS: Preset = {**CLASSIC, "steps": 100_000, "novelty": 0.5, "novelty_steps": 25_000}
# n = 1: with 5, HalfCheetah takes twice as many steps to 4,000 (benchmarks/results/notes-on-learning.md)
MUJOCO: Preset = {
    **apex_dpg.MUJOCO, "reward_range": (-2.0, 15.0), "atoms": 101,
}  # fmt: skip
MUJOCO_UPRIGHT: Preset = {**MUJOCO, "n_step": 5}  # with 1, Hopper's critic expects never to fall
MUJOCO_SMALL: Preset = {**MUJOCO, "reward_range": None}
MUJOCO_STANDUP: Preset = {**MUJOCO, "reward_range": (-2.0, 200.0)}  # random play earns 29 a step
DM_CONTROL: Preset = {**apex_dpg.DM_CONTROL, "layer_norm": False, "reward_range": (0.0, 1.0)}
PRESETS: Presets = {
    "paper": PAPER, "classic": CLASSIC, "mujoco": MUJOCO, "mujoco_upright": MUJOCO_UPRIGHT,
    "mujoco_small": MUJOCO_SMALL, "mujoco_standup": MUJOCO_STANDUP, "dm_control": DM_CONTROL,
    "vector_continuous": VECTOR_CONTINUOUS,
}  # fmt: skip


def nearest_zero(low: float, high: float) -> float:
    """The return in a range from which a new critic begins."""
    return min(max(0.0, low), high)


class Categorical(Returns):
    """Logits of ``atoms`` evenly spaced returns from ``low`` to ``high``; cross-entropy to the projected target."""

    atoms: Tensor

    def __init__(self, low: float, high: float, atoms: int) -> None:
        super().__init__()
        self.size, self._range = atoms, (low, high)  # of a new critic: one that is loaded brings its own
        self.register_buffer("atoms", torch.linspace(low, high, atoms))

    def start(self, last: nn.Linear) -> None:
        """Every return of the range is as likely as another; where its middle is below 0, those around 0 are: a critic
        that expects too little of what was not tried yet keeps the policy away from it."""
        super().start(last)
        low, high = self._range
        if low + high >= 0.0:
            return
        two = 2 * (high - low) / (self.size - 1)  # atoms
        with torch.no_grad():
            away = (self.atoms - nearest_zero(low, high)) / two
            last.bias.add_((-0.5 * away.square()).clamp(min=RARE))

    def mean(self, outputs: Tensor) -> Tensor:
        return categorical_mean(outputs, self.atoms)

    def loss(self, outputs: Tensor, items: Tensors, after: Tensor) -> Tensor:
        target = categorical_projection(items["reward"], items["discount"], torch.softmax(after, -1), self.atoms)
        return categorical_cross_entropy(target, outputs)

    def edge_mass(self, outputs: Tensor) -> Tensor:
        return torch.softmax(outputs, -1)[..., [0, -1]]

    def clipped_mass(self, items: Tensors, after: Tensor) -> Tensor:
        given = items["reward"], items["discount"], torch.softmax(after, -1), self.atoms
        return categorical_outside(*given, rounding=1e-4)  # a range may be exactly what is possible


class Mixture(Returns):
    """Weights, means and deviations of ``components`` Gaussians, in units of half the range from ``low`` to ``high``
    around its middle; cross-entropy to ``samples`` of the target."""

    scale: Tensor

    def __init__(self, low: float, high: float, components: int, samples: int) -> None:
        super().__init__()
        self.size, self.samples, self._range = 3 * components, samples, (low, high)
        self.register_buffer("scale", torch.tensor([(high + low) / 2, (high - low) / 2]))

    def start(self, last: nn.Linear) -> None:
        """Around 0, and narrow: a wide target is known by its samples alone, whose noise would hide what actions differ
        by, and becomes narrower only by the discount with each copy of the target network."""
        super().start(last)
        low, high = self._range
        middle, half = (high + low) / 2, (high - low) / 2
        zero = (nearest_zero(low, high) - middle) / half if half else 0.0
        with torch.no_grad():
            _, means, widths = last.bias.chunk(3)
            means += zero + (torch.linspace(-INITIAL_SPREAD, INITIAL_SPREAD, len(means)) if len(means) > 1 else 0.0)
            widths += math.log(math.expm1(INITIAL_SPREAD))

    def parts(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, means and deviations ``[B, K]``, in units of the return."""
        logits, means, widths = outputs.chunk(3, -1)
        return logits, self.scale[0] + self.scale[1] * means, self.scale[1] * (F.softplus(widths) + FLOOR)

    def mean(self, outputs: Tensor) -> Tensor:
        logits, means, _ = self.parts(outputs)
        return mixture_mean(logits, means)

    def loss(self, outputs: Tensor, items: Tensors, after: Tensor) -> Tensor:
        z = mixture_sample(items["noise/uniform"], items["noise/normal"], *self.parts(after))
        samples = torch.addcmul(items["reward"][:, None], items["discount"][:, None], z)
        return mixture_cross_entropy(samples, *self.parts(outputs))

    def noise(self, rows: int, rng: torch.Generator) -> Tensors:
        shape = (rows, self.samples)
        return {"noise/uniform": torch.rand(shape, generator=rng), "noise/normal": torch.randn(shape, generator=rng)}


class RangeLearner(SGDLearner):
    """The learner of a critic with a range of returns. It says at its first update where that range came from
    (``message``), and once, if so, that it is too narrow: when the share of the probability on the outermost returns,
    an average over about a hundred looks, is above 5 % (``EDGES``), and targets lie beyond them (``CLIPPED``). Where
    the smallest return that is possible is also a common one, there are none."""

    message = ""
    edges = clipped = 0.0
    warned = False

    def update(self, batch: Batch) -> Update:
        if self.step == 0 and self.message:
            log.warning("%s", self.message)
        update = super().update(batch)
        if "edge_mass" in update.metrics:
            self.watch(*(float(update.metrics[f"{name}_mass"]) for name in ("edge", "top_edge", "clipped")))
        return update

    def watch(self, mass: float, top: float, clipped: float) -> None:
        """Take in one look at the outermost returns, of which ``top`` is the largest's, and at what lies beyond."""
        self.edges += 0.01 * (mass - self.edges)
        self.clipped += 0.01 * (clipped - self.clipped)
        if self.edges > EDGES and self.clipped > CLIPPED and self.step >= SETTLED and not self.warned:
            self.warned = True
            low, high = (float(x) for x in self.algorithm.nets.returns.atoms[[0, -1]])
            log.warning(
                "%.0f %% of the critic's probability lies on the outermost of its returns, %.4g and %.4g, the most on "
                "the %s: what is beyond cannot be told apart; begin another run with a %s",
                100 * self.edges, low, high, *(
                    ("largest", "higher --v-max") if 2 * top > mass else ("smallest", "lower --v-min")
                ),
            )  # fmt: skip

    def state_dict(self) -> State:
        return {**super().state_dict(), "edges": self.edges, "clipped": self.clipped, "warned": self.warned}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.edges, self.warned = state["edges"], state["warned"]
        self.clipped = state.get("clipped", 1.0)  # an earlier version has not looked


network, agent = apex_dpg.network, apex_dpg.agent


def program(cfg: Config) -> Program:
    """Actors, one replay, one learner."""
    require_box(cfg)
    if cfg.critic == "categorical" and cfg.atoms < 2:
        raise UsageError(f"--atoms expects at least 2 returns, found {cfg.atoms}")
    require_order(cfg.v_min, cfg.v_max)
    message = ""
    if cfg.critic != "mean":
        low, high, message = cfg.return_range()
        require_atoms(low, high, cfg.atoms if cfg.critic == "categorical" else 2)
        cfg = replace(cfg, v_min=low, v_max=high)

    def learn(nets: DPGNetwork, ctx: Context) -> RangeLearner:
        learner = descent(cfg, ctx, DPG(cfg, nets, ctx.seed), RangeLearner)
        learner.message = message
        return learner

    return apex_dpg.wired("d4pg", cfg, learn)
