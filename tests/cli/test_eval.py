"""``shoal eval``: what it prints, and the video it makes."""

from __future__ import annotations

import builtins
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.api import Episode, UsageError
from shoal.envs import EnvOptions
from shoal.envs.film import film
from shoal.extras import pip_install
from shoal.policy.video import _ffmpeg, record
from shoal.roles.evaluator import Returns

from .conftest import Shoal
from .test_policy import ODD, untrained


@pytest.fixture
def run(fake: str, shoal: Shoal) -> str:
    code, _, _ = shoal(
        "train", fake, "--runtime", "serial", "--steps", "400", "--run-dir", "r", "--quiet", "--eval-every", "100",
        "--eval-episodes", "2",
    )  # fmt: skip
    assert code == 0
    return "r"


def test_it_prints_every_return_and_their_statistics(run: str, shoal: Shoal) -> None:
    code, out, _ = shoal("eval", run, "--episodes", "5", "--envs", "2", "--seed", "3", "--best")
    assert code == 0
    returns = [float(word) for word in out.splitlines()[0].removeprefix("returns: ").split()]
    assert len(returns) == 5
    for name, value in (("mean", np.mean(returns)), ("std", np.std(returns)), ("min", min(returns))):
        assert f"{name} {value:.4g}" in out
    assert f"interquartile mean {np.mean(sorted(returns)[1:4]):.4g} over 5 episodes" in out
    assert shoal("eval", run, "--episodes", "5", "--envs", "2", "--seed", "3", "--best")[1] == out


@pytest.mark.parametrize(
    "args, says",
    [
        ((), "needs a run directory first"),
        (("a", "b"), "takes one run directory, found 2"),
        (("nowhere",), "no such run directory: 'nowhere'"),
        (("r", "--episodes", "0"), "--episodes expects an integer from 1 to 1000000, found 0"),
        (("r", "--video", "a.gif"), "a video's name ends in .mp4, found 'a.gif'"),
        (("r", "--video", "no/a.mp4"), "no such directory: 'no'"),
        (("r", "--epsiodes", "3"), "did you mean '--episodes'"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(run: str, shoal: Shoal, args: tuple[str, ...], says: str) -> None:
    code, _, err = shoal("eval", *args)
    assert code == 2 and says in err and "Traceback" not in err


def frames(path: Path, size: int) -> list[np.ndarray]:
    """Decoded by ffmpeg, [size, size, 3] each."""
    command = [ffmpeg(), "-loglevel", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    return list(np.frombuffer(raw, np.uint8).reshape(-1, size, size, 3))


def ffmpeg() -> str:
    try:
        return _ffmpeg()
    except UsageError as error:
        pytest.skip(str(error))


def test_a_video_shows_every_state_of_one_episode(tmp_path: Path) -> None:
    ffmpeg()
    shown = record(untrained("impala", f"{ODD}:matrix", hidden=(8,)), tmp_path / "v.mp4")
    grey = [f.mean() for f in frames(tmp_path / "v.mp4", 320)]  # 64 pixels, five times
    assert shown == 5.0 and np.allclose(grey, [0, 40, 80, 120, 160, 200], atol=6), grey


def test_atari_is_filmed_in_colour_as_it_is_played(tmp_path: Path) -> None:
    """The twin's picture is the one that the policy sees, before it is made grey and small."""
    batch, picture, rate = film("ALE/Pong-v5", EnvOptions())
    obs = batch.reset(3)
    rng = np.random.default_rng(0)
    for _ in range(120):
        obs = batch.step(rng.integers(0, 6, 1)).obs
    grey = picture() @ np.array([0.299, 0.587, 0.114])
    rows, columns = (np.linspace(0, n, 85).astype(int)[:-1] for n in grey.shape)
    small = np.add.reduceat(np.add.reduceat(grey, rows, 0), columns, 1)
    small /= np.outer(np.diff([*rows, 210]), np.diff([*columns, 160]))
    batch.close()
    assert rate == 15 and picture().shape == (210, 160, 3)
    assert np.corrcoef(small.ravel(), obs["obs"][0, -1].ravel())[0, 1] > 0.97


def test_what_cannot_be_filmed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ffmpeg()
    with pytest.raises(UsageError, match="cannot be filmed"):
        record(untrained("impala", f"{ODD}:tuples", hidden=(8,)), tmp_path / "v.mp4")
    assert not list(tmp_path.iterdir())
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "imageio_ffmpeg":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=re.escape(pip_install("video"))):
        record(untrained("impala", f"{ODD}:matrix", hidden=(8,)), tmp_path / "v.mp4")


class _Fixed:
    """A policy whose best guess returns about 10, and whose drawn actions return about ``drawn``."""

    def __init__(self, samples: bool, drawn: float) -> None:
        self.samples, self.drawn, self.asked = samples, drawn, list[bool]()

    def evaluate(self, episodes: int, seed: int, greedy: bool, envs: int, limit: int) -> Returns:
        self.asked.append(greedy)
        noise = np.random.default_rng(0).standard_normal(episodes)
        return Returns([Episode(r, 1) for r in noise + (10.0 if greedy else self.drawn)])


DRAWN, BEST = "mean 4.817 with actions drawn from the policy", "mean 9.817 with the policy's best guess"


@pytest.mark.parametrize(
    ("samples", "drawn", "episodes", "flags", "said", "played"),
    [
        (True, 5.0, 20, (), DRAWN, [True, False]),
        (True, 10.0, 20, (), None, [True, False]),
        (True, 5.0, 9, (), None, [True]),
        (True, 5.0, 20, ("--sampled",), BEST, [False, True]),
        (False, 5.0, 20, (), None, [True]),
    ],
)
def test_mean_of_the_other_actions_is_told_where_it_differs(
    run: str, shoal: Shoal, monkeypatch: pytest.MonkeyPatch, samples: bool, drawn: float, episodes: int,
    flags: tuple[str, ...], said: str | None, played: list[bool],
) -> None:  # fmt: skip
    policy = _Fixed(samples, drawn)
    monkeypatch.setattr("shoal.run.Run.policy", lambda self, **which: policy)
    code, out, _ = shoal("eval", run, "--episodes", str(episodes), *flags)
    assert code == 0 and policy.asked == played
    assert [text in out for text in (DRAWN, BEST)] == [said == text for text in (DRAWN, BEST)]
    facts = json.loads(shoal("eval", run, "--episodes", str(episodes), *flags, "--json")[1])
    assert facts["actions"] == ("sampled" if flags else "greedy")
    assert (facts["other_mean"] is not None) == (said is not None)
    assert said is None or f"mean {facts['other_mean']:.4g} with" in said
