"""Toy environments can be looked at where they have a picture."""

from __future__ import annotations

import numpy as np

from shoal.envs import EnvOptions
from shoal.envs.film import film


def test_a_film_of_catch_shows_what_the_policy_sees() -> None:
    batch, picture, rate = film("toy:catch", EnvOptions())
    seen = batch.reset(3)
    for _ in range(12):  # past the end of an episode
        shown = picture()
        assert shown.shape == (20, 20, 3) and all((shown[..., i] == seen["obs"][0, 0]).all() for i in range(3))
        seen = batch.step(np.array([2])).obs
    assert rate == 5
