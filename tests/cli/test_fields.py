"""Fields of a system of the user's own: which types and names they may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NewType

import pytest

from shoal.api import UsageError
from shoal.settings.config import coerce_all, default_values
from shoal.settings.fields import RUN_OPTIONS
from shoal.settings.ranges import Range

from .conftest import FAKE, Shoal


class Mode(Enum):
    A = "a"


Rate = NewType("Rate", float)


@dataclass(frozen=True, kw_only=True)
class Fine:
    flag: bool = True
    number: int | float | None = None
    choice: Literal["a", 1, None] = "a"
    even: Annotated[int, Range("an even integer", lambda n: n % 2 == 0)] = 2
    pair: tuple[int, float] = (1, 0.5)
    pairs: tuple[tuple[int, int], ...] = ((1, 2),)
    many: list[int] = field(default_factory=lambda: [1, 2])
    anything: list = field(default_factory=list)
    table: dict[str, float] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)
    rates: Mapping[str, Rate] = field(default_factory=dict)
    whatever: Any = 1


def test_what_a_file_can_hold_comes_back_as_it_was() -> None:
    values = {"pair": [3, 4], "pairs": [[1, 2], [3, 4]], "many": [5], "anything": [1, [2]], "names": {"a": [1]}}
    assert coerce_all(Fine, values, "x") == {
        **default_values(Fine), "pair": (3, 4.0), "pairs": ((1, 2), (3, 4)), "many": [5], "anything": [1, [2]],
        "names": {"a": [1]},
    }  # fmt: skip
    with pytest.raises(UsageError, match=r"'many' \(x\) expects integers, found \['one'\]"):
        coerce_all(Fine, {"many": ["one"]}, "x")


@pytest.mark.parametrize(
    "hint, value, named",
    [
        (Mode, Mode.A, "Mode"), (Path, Path("x"), "Path"), (Path | None, None, "Path"), (tuple, (), "tuple"),
        (dict[int, str], {}, "dict"), (list[Path], [], "list"), (set[int], set(), "set"),
        (Literal[Mode.A], Mode.A, "Literal"), (complex, 1j, "complex"),
    ],
)  # fmt: skip
def test_what_a_file_cannot_hold_is_refused(hint: Any, value: Any, named: str) -> None:
    Config = make_dataclass("Config", [("mode", hint, field(default_factory=lambda: value))])
    with pytest.raises(UsageError) as error:
        default_values(Config)
    says = str(error.value)
    assert says.startswith("field 'mode' of Config has the type ") and named in says and "\n" not in says
    assert says.endswith("expected bool, int, float, str, None or Literal, or a union, tuple[...], list[...] or "
                         "dict[str, ...] of these")  # fmt: skip


@pytest.mark.parametrize("name", sorted(RUN_OPTIONS))
def test_the_name_of_an_option_of_the_run_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"field '{name}' of Config has the name of an option of the run: rename it"):
        default_values(make_dataclass("Config", [(name, int, 3)]))


@pytest.mark.parametrize("line, says", [
    ("    seed: int = 7", "field 'seed' of Config has the name of an option of the run"),
    ("    where: Path = Path()", "field 'where' of Config has the type Path, which a file cannot hold"),
])  # fmt: skip
@pytest.mark.parametrize("words", ["train OWN --seed 3", "config OWN", "draw OWN", "train OWN --help"])
def test_a_system_with_such_a_field_is_one_sentence(words: str, line: str, says: str, shoal: Shoal) -> None:
    text = Path(FAKE).read_text().replace("    learning_rate: float", f"{line}\n    learning_rate: float")
    Path("own.py").write_text(text.replace("import numpy", "from pathlib import Path\nimport numpy"))
    code, out, err = shoal(*words.replace("OWN", "own.py").split())
    assert code == 2 and err.startswith(f"shoal: {says}") and err.count("\n") == 1 and out == ""
    assert not Path("runs").exists()
