"""Options of environments that a user may set."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal, TypeVar

from shoal.settings.ranges import Count, Fraction, Natural, NonNegative, Noops, Repeats
from shoal.types import Values

Backend = Literal["auto", "ale", "envpool", "gymnasium-vector", "gymnasium"]
T = TypeVar("T", bound="EnvOptions")
GIVEN = "_given"  # attribute of options that is not a field
RewardClip = Literal["none", "sign", "unit"]
ActionMask = Literal["auto", "info", "none"]
UNSEEN = ("episode_bound", "novelty", "novelty_steps")  # options that the spaces of an environment do not depend on


@dataclass(frozen=True, kw_only=True)
class AtariOptions:
    """Options of the Atari protocol, which other environments ignore."""

    only_for: ClassVar[str] = "atari"

    frame_skip: Repeats = 4
    """Emulator frames that an action is repeated for; the last two are max-pooled (Mnih et al. 2015, Methods)."""
    frame_stack: Count = 4
    """Frames in an observation (Mnih et al. 2015, Methods)."""
    noop_max: Noops = 30
    """Largest number of no-op steps that start an episode (Mnih et al. 2015, Methods)."""
    life_loss: bool = False
    """End the episode, in training, at a lost life (Mnih et al. 2015; Machado et al. 2018 advise against it)."""
    sticky_actions: Fraction = 0.0
    """Probability that the emulator repeats the previous action at a frame (Machado et al. 2018 use 0.25)."""
    full_action_space: bool = False
    """Offer all 18 actions instead of the game's minimal set (Machado et al. 2018)."""
    screen: Count = 84
    """Height and width of the grey image (pixels)."""
    fire_reset: bool = True
    """Press FIRE after a reset and after a lost life in games that wait for it (not in Mnih et al. 2015)."""
    max_episode_frames: Count = 108_000
    """Emulator frames after which an episode is truncated (30 minutes of play; Hessel et al. 2018, table 4)."""


@dataclass(frozen=True, kw_only=True)
class EnvOptions(AtariOptions):
    """Options of any environment, as plain picklable data."""

    backend: Backend = "auto"
    """Implementation that steps the environments; auto: the fastest installed one that supports the environment."""
    env_kwargs: Values = field(default_factory=dict)
    """Arguments of the environment's constructor."""
    max_episode_steps: Count | None = None
    """Time limit of an episode (agent steps); none: the environment's own."""
    episode_bound: Natural = 0
    """Time limit of an episode if the environment is registered without a time limit (agent steps); 0: none."""
    reward_clip: RewardClip = "none"
    """Clipping of the training reward: none, its sign, or to [-1, 1]; reported returns are never clipped."""
    reward_scale: float = 1.0
    """Factor on the training reward, after clipping."""
    novelty: NonNegative = 0.0
    """Weight of a bonus for novel observations (random network distillation, Burda et al. 2018), added to the training
    reward after scaling; 0: none."""
    novelty_steps: Natural = 0
    """Steps of each environment over which the bonus for novelty falls to 0; 0: it does not fall."""
    last_action_reward: bool = False
    """Add the last action and reward to the observation, zero at an episode's first step."""
    action_mask: ActionMask = "auto"
    """Source of the mask of allowed actions: auto, a Dict observation's `action_mask` or an announced
    `info["action_mask"]`; info, `info["action_mask"]`; none, no mask: all actions are allowed."""
    check: bool = True
    """Raise an error for an observation or reward that is not finite, or has a wrong shape or dtype."""

    def __new__(cls: type[T], *_: object, **given: object) -> T:
        """Record which fields were given explicitly (``given_fields``), so that others may be chosen automatically."""
        out = super().__new__(cls)
        object.__setattr__(out, GIVEN, frozenset(given))
        return out

    def given_fields(self) -> Values:
        """Return the explicitly given fields, with their values."""
        return {name: getattr(self, name) for name in sorted(getattr(self, GIVEN, ()))}

    def env_key(self) -> tuple[str, ...]:
        """Return a key that distinguishes options with different effects on what an environment offers."""
        return tuple(repr(getattr(self, f.name)) for f in fields(EnvOptions) if f.name not in UNSEEN)
