"""What a user may choose about an environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Backend = Literal["auto", "ale", "envpool", "gymnasium-vector", "gymnasium"]
RewardClip = Literal["none", "sign", "unit"]


@dataclass(frozen=True)
class EnvOptions:
    """Plain and picklable. Only the first block applies to every environment; the second one is the Atari
    protocol and is ignored elsewhere.

    backend: who steps the environments; ``auto`` picks the fastest that serves and says why in ``EnvSpec.why``.
    reward_clip: of the training reward only (``Episode.ret`` stays raw). ``sign`` is DQN's and IMPALA's on Atari,
        ``unit`` clips to [-1, 1].
    reward_scale: the (clipped) training reward is multiplied by this.
    kwargs: passed to the environment's constructor.
    max_episode_steps: agent steps after which an episode is truncated; None: the environment's own limit.
    last_action_reward: adds ``obs/last_action`` and ``obs/last_reward`` (network input in IMPALA and R2D2), zero
        at an episode's first step.
    check: fail on NaN, infinity, or a wrong shape or dtype.

    frame_skip: frames an action is repeated for; the last two are max-pooled (Mnih et al. 2015, Methods: 4).
    noop_max: up to so many no-ops start an episode (Mnih et al. 2015, Methods: 30).
    life_loss: a lost life is a termination for training (Mnih et al. 2015, Methods); the game goes on, the frame
        stack starts anew, and ``Episode`` is still the whole game. Machado et al. (2018, section 4.1) advise against.
    sticky_actions: probability that the emulator repeats the previous action at a frame (Machado et al. 2018,
        section 5: 0.25). Gymnasium's ``ALE/*-v5`` ids default to 0.25; **here it is 0** unless set, as in DQN,
        Ape-X, IMPALA and R2D2.
    full_action_space: all 18 actions instead of the game's minimal set (Machado et al. 2018 advise it; R2D2 uses it).
    stack: frames in an observation (Mnih et al. 2015: 4).
    screen: height and width of the grey image (Mnih et al. 2015: 84).
    fire_reset: press FIRE after a reset and a lost life in games that wait for it (OpenAI Baselines' wrapper;
        not in Mnih et al. 2015).
    max_episode_frames: truncation after so many emulator frames (30 minutes of play; Hessel et al. 2018, table 4).
    """

    backend: Backend = "auto"
    reward_clip: RewardClip = "none"
    reward_scale: float = 1.0
    kwargs: dict[str, object] = field(default_factory=dict)
    max_episode_steps: int | None = None
    last_action_reward: bool = False
    check: bool = True

    frame_skip: int = 4
    noop_max: int = 30
    life_loss: bool = False
    sticky_actions: float = 0.0
    full_action_space: bool = False
    stack: int = 4
    screen: int = 84
    fire_reset: bool = True
    max_episode_frames: int = 108_000
