"""Drawings name every role, channel, shape and byte count."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from shoal import systems
from shoal.api import Field
from shoal.program import Program, draw
from shoal.program.draw_svg import svg
from shoal.settings.config import resolve

from .conftest import Shoal


@pytest.fixture
def program(fake: str) -> Program:
    system = systems.load(fake)
    return system.program(resolve(system, overrides={"actors": 3}).cfg)


@pytest.mark.parametrize("picture", [draw.text, draw.mermaid, svg])
def test_pictures_are_complete(program: Program, picture: object) -> None:
    assert callable(picture)
    drawn = picture(program)
    for part in ("actor × 3", "learner", "unrolls", "params", "obs [10, 4, 4] float32", "room for 2 items", "4.8 kB"):
        assert part in drawn
    for line in drawn.splitlines():
        assert line == line.rstrip()


def test_svg_is_well_formed_and_nothing_lies_outside(program: Program) -> None:
    root = ET.fromstring(svg(program))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    rects = root.findall("{http://www.w3.org/2000/svg}rect")
    assert len(rects) == 4 + 2  # two of the cards stand for further replicas
    for r in rects:
        x, y, w, h = (float(r.attrib[k]) for k in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height


ODD = '"]<script>alert(1)</script>\n\x1b[2J\x00\ud800#'


def test_names_of_an_environments_observations_are_text_in_every_picture(program: Program) -> None:
    spec: Any = program.channels["unrolls"].spec
    spec[ODD] = Field((3,))
    drawn = svg(program)
    drawn.encode()
    assert "alert(1)" in "".join(ET.fromstring(drawn).itertext()) and "<script" not in drawn
    told = draw.mermaid(program)
    told.encode()
    assert "#quot;]#lt;script#gt;alert(1)" in told and not {"\x1b", "\0"} & set(told + draw.text(program))
    assert len(told.splitlines()) == len(draw.mermaid(program).splitlines())
    labels = [line for line in told.splitlines() if line.strip().startswith(("r", "c")) and "-->" not in line]
    assert labels and all(line.count('"') == 2 for line in labels)


def test_mermaid_edges_follow_the_channels(program: Program) -> None:
    edges = [line.strip() for line in draw.mermaid(program).splitlines() if "-->" in line]
    assert edges == ["r0 --> c0", "c0 --> r1", "r1 --> c1", "c1 --> r0"]


def test_the_file_name_chooses_the_format(shoal: Shoal, fake: str) -> None:
    assert shoal("draw", fake, "--output", "p.svg") == (0, "", "")
    assert shoal("draw", fake, "--output", "p.mmd")[0] == 0
    assert Path("p.svg").read_text().startswith("<svg") and "flowchart LR" in Path("p.mmd").read_text()


@pytest.mark.parametrize("n, text", [(0, "0 B"), (999, "999 B"), (1536, "1.5 kB"), (7.5e9, "7.5 GB")])
def test_human_bytes(n: float, text: str) -> None:
    assert draw.human_bytes(n) == text


@pytest.mark.parametrize("name", systems.SYSTEMS)
def test_every_system_draws(name: str) -> None:
    system = systems.load(name)
    program = system.program(resolve(system, overrides={"actors": 2}, name=name).cfg)
    for picture in (draw.text, draw.mermaid, svg):
        assert all(role.name in picture(program) for role in program.roles)
