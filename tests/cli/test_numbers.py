"""Numeric settings: finite in float32, or integers of 64 bits, and sizes that are counted before they are taken."""

from __future__ import annotations

import dataclasses
import importlib
import math
import pkgutil
import shlex
import struct
import typing
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest

from cli.conftest import Shoal
from shoal import cli, systems
from shoal.analysis import profile as profiling
from shoal.api import UsageError, WiringError
from shoal.local.runtime import LocalRuntime
from shoal.planning import command as planning
from shoal.run import monitors, options
from shoal.run.options import LIMITS
from shoal.runtime import memory
from shoal.serial.runtime import SerialRuntime
from shoal.settings.config import default_values, resolve
from shoal.settings.flags import coerce, options as parse_options, ranged
from shoal.settings.ranges import FLOAT32_MAX, SMALLEST, Decay, Finite, Fraction, Natural, NonNegative, Range

ENVS = {"apex-dpg": "Pendulum-v1", "d4pg": "Pendulum-v1", "qt-opt": "Pendulum-v1"}
HUGE = (2**31, 99_999_999_999, 2**62, 2**63 - 1)
RETURNS = {"until-return", "threshold"}  # of which a number below 0 means something
MEMORY = 16 << 30  # bytes that this machine is said to have


def kinds(hint: Any) -> set[type]:
    """The numbers among what a type may hold."""
    if get_origin(hint) is Literal:
        return set()
    return {hint} & {int, float} if not get_args(hint) else set().union(*map(kinds, get_args(hint)))


def numeric(Config: Any, kind: type) -> Iterator[tuple[str, Any]]:
    """Fields that hold such numbers, each with its type."""
    hints = ranged(Config)
    return ((f.name, hints[f.name]) for f in dataclasses.fields(Config)
            if kind in kinds(hints[f.name]) and f.name != "env_kwargs")  # fmt: skip


def infinite(hint: Any) -> bool:
    return any(isinstance(a, Range) and a.infinite for a in get_args(hint)) or any(map(infinite, get_args(hint)))


def like(default: Any, hint: Any, number: float) -> Any:
    """``number`` as a value of a field, which may hold several."""
    many = isinstance(default, tuple) or "tuple" in str(hint)
    return (number,) * max(len(default or ()), 2 if "None" in str(hint) else 1) if many else number


@pytest.mark.parametrize("name", systems.SYSTEMS)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e308, -1e308, 10**40, 3.5e38])
def test_no_setting_takes_a_number_that_float32_does_not_hold(name: str, number: float) -> None:
    Config = systems.load(name).Config
    defaults = default_values(Config)
    for kind in (int, float):
        for field, hint in numeric(Config, kind):
            if number == math.inf and infinite(hint):
                continue
            with pytest.raises(UsageError, match=f"^'{field}' expects .*, found "):
                resolve(systems.load(name), None, None, {field: like(defaults[field], hint, number)}, source="argument")


@pytest.mark.parametrize("name", systems.SYSTEMS)
def test_a_huge_integer_is_refused_or_its_memory_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is taken instead says what it means: a period, a limit, or a size of something that is not there."""
    monkeypatch.setattr(memory, "available", lambda: MEMORY)
    system, taken, sentences = systems.load(name), set(), set()
    base = {"env": ENVS.get(name, "CartPole-v1"), "actors": 2}
    defaults = default_values(system.Config) | base
    for field, hint in numeric(system.Config, int):
        for number in HUGE:
            try:
                values = base | {field: like(defaults[field], hint, number)}
                program = system.program(resolve(system, "none", None, values, name=name).cfg)
                SerialRuntime().check(program)
                LocalRuntime().check(program)
                taken.add(field)
            except (UsageError, WiringError) as error:
                sentences.add(str(error))
    periods = {
        "steps", "max_episode_steps", "episode_bound", "novelty_steps", "epsilon_steps", "target_period", "target_lag",
        "max_lag", "n_fetch", "n_push", "random_steps", "check_every", "evaluate_every", "cap_start", "noise_seed",
    }  # fmt: skip
    unused = {"core_size"} if default_values(system.Config).get("core") == "none" else set()
    fits = {"noise_table"}  # 8 GB of it
    assert taken <= periods | unused | fits
    assert not any("\n" in sentence for sentence in sentences)


@pytest.mark.parametrize(
    "words, says",
    [
        ("dqn --reward-scale inf", "--reward-scale expects a number, found 'inf': numbers are finite, and go up to"),
        ("dqn --reward-scale 1e308", "numbers are finite, and go up to 3.4e+38 (float32)"),
        ("dqn --until-return inf", "--until-return expects a number, found inf: numbers are finite"),
        ("dqn --until-return 1e39", "--until-return expects a number, found 1e39"),
        ("dqn --seconds inf", "--seconds expects a finite number above 0, found inf"),
        ("dqn --learning-rate 'linear(1e308, 0)'", "--learning-rate expects a finite number of at least 0 or linear"),
        ("dqn --hidden 99999999999", "GiB is available: make the network"),
        ("dqn --hidden 2147483648 2147483648", "the network takes more than 2**63 bytes"),
        ("dqn --hidden 1e30", "--hidden expects integers of at least 1, found '1e30'"),
        ("dqn --device cuda:\uff11", "--device expects auto, cpu, cuda or cuda:N, found 'cuda:\uff11'"),
        ("dqn --unroll 1e19", "integers go up to 2**63 - 1"),
        ("dqn --envs 5000", "--envs expects an integer from 1 to 4095, found 5000"),
        ("dqn --eval-every 100 --eval-episodes 100000000000", "--eval-episodes expects an integer from 1 to 1000000"),
        ("impala --unroll 99999999 --envs 1 --steps 300", "unroll (99999999 agent steps) is longer than the whole run"),
        ("pbt --of impala --mutate learning_rate=0:0", "lies between two different numbers, the lower first; found 0"),
        ("pbt --of impala --mutate learning_rate=0:inf", "learning_rate expects"),
        ("pbt --of impala --mutate learning_rate --population 99999999", "--population expects an integer from 1 to"),
    ],
)  # fmt: skip
def test_a_number_that_means_nothing_is_one_sentence(words: str, says: str, shoal: Shoal) -> None:
    code, _, err = shoal("train", *shlex.split(words), "--runtime", "serial")
    assert code == 2 and err.count("\n") == 1 and says in err


def tables() -> dict[str, dict[str, Any]]:
    """The types of all flags that are a command's own, wherever in ``shoal.cli`` or beside it they are."""
    modules = [importlib.import_module(f"shoal.cli.{m.name}") for m in pkgutil.iter_modules(cli.__path__)]
    found: dict[str, dict[str, Any]] = {"LIMITS": {k.replace("_", "-"): v for k, v in LIMITS.items()}}
    for module in [*modules, planning, options, monitors, profiling]:
        for name, value in vars(module).items():
            if "FLAGS" in name and isinstance(value, dict):
                several = {f".{k}": v for k, v in value.items() if isinstance(v, dict)} or {"": value}
                found |= {f"{module.__name__}.{name}{key}": flags for key, flags in several.items()}
    return found


TABLES = tables()


def test_the_flags_of_all_commands_are_found() -> None:
    named = {flag for flags in TABLES.values() for flag in flags}
    assert {"seconds", "trials", "share", "port", "threshold", "noop", "target", "alert-after", "checkpoint-every",
            "envs"} <= named  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("word", ["nan", "inf", "-inf", "1e308", "1e999", "1e40", "-1e39", "", "9" * 5_000, "\u00b2"])
def test_no_option_of_a_command_takes_a_word_that_is_no_number(table: str, word: str) -> None:
    for name, hint in TABLES[table].items():
        if kinds(hint):
            with pytest.raises(UsageError, match="expects") as refused:
                parse_options([(f"--{name}", [word])], TABLES[table], "x")
            assert len(str(refused.value)) < 1_000 and "\n" not in str(refused.value)


@pytest.mark.parametrize("table", TABLES)
def test_an_option_of_a_command_is_a_number_within_a_range(table: str) -> None:
    for name, hint in TABLES[table].items():
        for word in ("-1", "0", "1e-45", "2147483648", "99999999999", "9223372036854775807") if kinds(hint) else ():
            try:
                found = parse_options([(f"--{name}", [word])], TABLES[table], "x")[name]
            except UsageError:
                continue
            assert math.isfinite(struct.unpack("f", struct.pack("f", found))[0]), name
            assert found >= 0 or name in RETURNS, f"--{name} takes {word}"


@pytest.mark.parametrize("number", [1e-46, -1e-46, "1e-45", 1e-38, 5e-324, "1e-400", "-2E-999"])
def test_no_number_is_taken_that_vanishes_or_loses_digits_in_float32(number: Any) -> None:
    for hint in (float, Fraction, Finite, NonNegative, int, Natural):
        with pytest.raises(ValueError, match=r"at least|^$"):
            coerce(hint, number)
    assert coerce(int, "0e9") == coerce(Natural, "00") == 0 and coerce(float, "-0.0e5") == 0.0
    assert coerce(float, SMALLEST) == SMALLEST and coerce(float, 0.0) == 0.0


def test_the_largest_number_of_float32_is_taken() -> None:
    assert coerce(float, FLOAT32_MAX) == FLOAT32_MAX
    assert coerce(typing.Annotated[float, Range("x", lambda x: True, infinite=True)], "inf") == math.inf


@pytest.mark.parametrize("text, meant", [("10k", 10_000), ("1.1M", 1_100_000), ("2.3k", 2_300), ("0.5G", 5 * 10**8)])
def test_a_letter_behind_a_whole_number_multiplies_it(text: str, meant: int) -> None:
    assert coerce(int, text) == meant
    for wrong in ("1.0001k", "k", "1e400M"):
        with pytest.raises(ValueError, match=r"^$"):
            coerce(int, wrong)


def test_the_factor_of_a_running_average_is_below_1() -> None:
    for value in (0.0, 0.999):
        assert coerce(Decay, value) == coerce(Fraction, value) == value
    assert coerce(Fraction, 1.0) == 1.0
    with pytest.raises(ValueError, match=r"^$"):
        coerce(Decay, 1.0)
