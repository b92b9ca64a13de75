"""D4PG: the roles of Ape-X DPG, with a critic that is a distribution of the n-step return.

Barth-Maron et al. 2018, "Distributed Distributional Deterministic Policy Gradients".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from shoal.algos.dpg import DPG, RangeLearner
from shoal.algos.dpg_network import DPGNetwork
from shoal.algos.returns import Categorical, Expected, Mixture, Returns
from shoal.api import Context, UsageError
from shoal.program import Program
from shoal.settings.ranges import Finite, OnlyWith, Parts
from shoal.systems import apex_dpg
from shoal.systems.config import Preset, Presets
from shoal.systems.replayed import descent
from shoal.systems.return_range import require_atoms, require_order, return_range
from shoal.types import Values


@dataclass(frozen=True, kw_only=True)
class Config(apex_dpg.Config):
    """D4PG."""

    at_start: ClassVar[tuple[str, ...]] = ("critic", "atoms", "components", "v_min", "v_max")
    only_with: ClassVar[OnlyWith] = {
        **dict.fromkeys(("v_min", "v_max", "reward_range"), ("critic", "categorical", "mixture")),
        "atoms": ("critic", "categorical"), "components": ("critic", "mixture"),
        "mixture_samples": ("critic", "mixture"),
    }  # fmt: skip

    critic: Literal["categorical", "mixture", "mean"] = "categorical"
    """What the critic says of the return: a categorical distribution, a mixture of Gaussians, its mean only."""
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
        """Also of the range of returns."""
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
        """What the critic says of the return. A range not yet known does not matter to actors: parameters bring it."""
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
VECTOR_CONTINUOUS: Preset = {**apex_dpg.VECTOR_CONTINUOUS}
MUJOCO: Preset = {  # n = 1: with 5, HalfCheetah takes twice as many steps to 4,000 (docs/results.md)
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
network, agent = apex_dpg.network, apex_dpg.agent


def program(cfg: Config) -> Program:
    """Actors, one replay, one learner."""
    apex_dpg.require_box(cfg)
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
