"""What Shoal prints where a person looks: tables in terminals of any width, and text without control characters."""

from __future__ import annotations

import io
import sys

import pytest
from rich.table import Table

from shoal.cli.population import show
from shoal.terminal import RESET, Plain, cell, print_table


@pytest.mark.parametrize("columns, laid_out", [(30, False), (40, False), (90, True), (200, True)])
def test_a_table_is_laid_out_where_its_words_have_room_and_told_row_after_row_elsewhere(
    columns: int, laid_out: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = ("actors", "steps/s", "updates/s", "memory", "bottleneck")
    rows = [("1", "56,137", "455.1", "13.6 kB", "learner-bound [bold]"), ("16", "356,357", "9,200.5", "1.1 MB", "")]
    table = Table(box=None, title=cell("CartPole-v1"))
    for head in heads:
        table.add_column(head)
    for row in rows:
        table.add_row(*map(cell, row))
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(table)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns and lines[0].strip() == "CartPole-v1"
    assert (lines[1].split() == list(heads)) == laid_out
    said = " ".join(" ".join(lines).split())
    assert all(word in said for row in rows for word in " ".join(row).split())
    if not laid_out:
        assert said.startswith("CartPole-v1 actors 1, steps/s 56,137, updates/s 455.1, memory 13.6 kB, bottleneck")
        assert said.endswith("memory 1.1 MB"), "an empty cell is left out"


def test_text_has_its_control_characters_written_out_and_a_reset_of_styles_left_out() -> None:
    shown = io.StringIO()
    plain = Plain(shown)
    assert plain.write(RESET) == len(RESET) and plain.write("a\x1b[0mb\n") == 7
    assert shown.getvalue() == "a\\x1b[0mb\n"


@pytest.mark.parametrize("terminal, lines", [(True, 1), (False, 2)])
def test_what_a_population_tells_has_lines_of_bounded_length_off_a_terminal(
    terminal: bool, lines: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    sentence = "member 1 has had too few episodes, " * 6
    show(sentence.rstrip())
    found = capsys.readouterr().out.splitlines()
    assert len(found) == lines and " ".join(line.strip() for line in found) == sentence.rstrip()
    assert terminal or max(map(len, found)) <= 160
