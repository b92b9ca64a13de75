"""What the docs say of the code: commands resolve, Python parses, metric names and links exist."""

from __future__ import annotations

import ast
import glob
import inspect
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.cli import help, main as cli, record as cli_record, runs as cli_runs, watch as cli_watch
from shoal.run.population.member import check_space
from shoal.settings.flags import options, parse_flags, split
from shoal.systems import SYSTEMS, load

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SYSTEM_PAGES = {name: ROOT / "docs" / "systems" / f"{name}.md" for name in SYSTEMS}
HEADINGS = ["Overview", "Usage", "Logged metrics", "Implementation details", "Results"]


def blocks(language: str) -> list[Any]:
    """(info, text) of every fenced block; an info of ``run`` asks that the block be executed."""
    return [
        pytest.param(info.strip(), text, id=f"{page.relative_to(ROOT)}:{i}")
        for page in PAGES
        for i, (found, info, text) in enumerate(FENCE.findall(page.read_text(encoding="utf-8")))
        if found == language
    ]


def commands() -> list[Any]:
    out = []
    for block in blocks("bash"):
        for line in block.values[1].replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["scripts/quickstart"] and len(words) > 1:
                words[0] = "shoal"
            if words[:1] == ["shoal"]:
                out.append(pytest.param(words[1:], id=" ".join(words)))
    return out


def test_each_page_that_speaks_of_gpus_says_that_none_has_run_shoal() -> None:
    """Until one has: then this test goes, with those sentences."""
    said = re.compile(
        r"no GPU has (run|used)|(?<=\()none has run Shoal|: none has run Shoal|none of Shoal's systems has run on yet|"
        r"no recorded run has used (a GPU|one)|never been run on a GPU", re.IGNORECASE,
    )  # fmt: skip
    pages = [page for page in PAGES if page.parent.name != "decisions"]
    silent, speaking = [], 0
    for page in [*pages, ROOT / "Dockerfile", ROOT / "CHANGELOG.md"]:
        text = " ".join(page.read_text(encoding="utf-8").replace("\n#", "\n").split())
        if re.search(r"\bGPUs?\b|cuda", text, re.IGNORECASE):
            speaking += 1
            silent += [] if said.search(text) else [str(page.relative_to(ROOT))]
    assert speaking > 10 and not silent


# ------------------------------------------------------------------------------------- snippets
@pytest.mark.parametrize("words", commands())
def test_commands_resolve(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsed by the command's own resolver; the programs are wired and validated, and nothing is run."""
    wired: list[Any] = []

    def validate_only(name: str, system: Any, resolved: Any, *_: Any, **__: Any) -> Any:
        program = system.program(resolved.cfg)
        program.validate()
        wired.append(program)
        raise KeyboardInterrupt

    def population_only(path: Path, setup: Any, tell: Any = None) -> Any:
        check_space(setup.system, setup.values, setup.interval_space())
        wired.append(setup)
        raise KeyboardInterrupt

    def connect(address: str) -> None:
        raise KeyboardInterrupt

    def measure(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shoal.planning.command.measure", measure)
    monkeypatch.setattr("shoal.ray_runtime.instance.attached", connect)
    monkeypatch.setattr("shoal.ray_runtime.instance.check_installed", lambda: None)
    monkeypatch.setattr("shoal.run.start", validate_only)
    monkeypatch.setattr("shoal.run.population.training.PopulationRun.begin", population_only)
    words = [str(ROOT / word) if word.startswith("examples/") else word for word in words]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))  # where the modules of one's own are
    if "HalfCheetah-v5" in words:
        pytest.importorskip("mujoco")
    if "shoal.envs.minigrid_pixels:pixels" in words:
        pytest.importorskip("minigrid")
    if any(word.startswith("MinAtar/") for word in words):
        pytest.importorskip("minatar")
    if any(word.startswith("mpe2.") for word in words):
        pytest.importorskip("mpe2")
    if any(word.startswith("LunarLander") for word in words):
        pytest.importorskip("Box2D")
    if "--demonstrations" in words:  # of data sets that the reader has
        at = words.index("--demonstrations")
        words = words[:at] + words[at + 2 :]
    if "--init-from" in words and not words[words.index("--init-from") + 1].startswith("zoo:"):  # a run of the reader
        at = words.index("--init-from")
        words = words[:at] + words[at + 2 :]
    if words[0] == "plan":
        (machine,) = [b.values[1] for b in blocks("toml") if "[[node]]" in b.values[1]]
        (tmp_path / "cluster.toml").write_text(machine)
        if "--costs" in words:  # that the reader has measured
            at = words.index("--costs")
            words = words[:at] + words[at + 2 :]
    own: dict[str, Any] = {
        **cli_runs.FLAGS,
        "record": cli_record.FLAGS,
        "watch": cli_watch.FLAGS,
        "report": {"out": str},
    }
    if words[0] in own or words[0] == "resume":  # of runs that the reader has made
        flags = [word for word in words[1:] if word.startswith("--")]
        groups = split(words[words.index(flags[0]) if flags else len(words) :])
        if words[0] == "resume":
            limits = {"--seconds", "--until-return", "--runtime", "--address", "--quiet", "--trust"}
            parse_flags(load("impala").Config, [g for g in groups if g[0] not in limits], "resume")
        else:
            options(groups, own[words[0]], words[0])
        return
    if words[0] in ("train", "profile", "plan", "cluster"):
        with pytest.raises(KeyboardInterrupt):
            cli.main(words)
    else:
        assert cli.main(words) == 0
    assert len(wired) == (words[0] in ("train", "profile"))


@pytest.mark.parametrize("info,text", blocks("python"))
def test_python_parses(info: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # for what a snippet writes
    tree = compile(text, "snippet", "exec", ast.PyCF_ONLY_AST)
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    for node in imported:
        if str(node.module).split(".")[0] == "shoal":
            exec(compile(ast.Module([node], []), "snippet", "exec"), {})
    if info.startswith("run"):
        (times,) = re.fullmatch(r"run(?: steps/(\d+))?", info).groups() or ("",)  # type: ignore[union-attr]
        shorter = re.sub(r"(?<=steps=)[\d_]+", lambda n: str(int(n[0]) // int(times or 1)), text)
        exec(compile(shorter, "snippet", "exec"), {"__name__": "snippet"})


def test_readme_shows_python_that_is_run() -> None:
    (block,) = [b.values for b in blocks("python") if str(b.id).startswith("README.md")]
    assert block[0] == "run steps/50" and "shoal.resume(" in block[1]


def test_every_command_of_the_page_of_tuning_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, with fewer steps and seeds, so that each finds what those before it have left."""
    pytest.importorskip("optuna", reason="the extra 'tune' is not installed")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "tuning.md").read_text("utf-8")
    lines = [line for _, _, text in FENCE.findall(page) for line in text.splitlines() if line.startswith("shoal ")]
    assert len(lines) == 7
    for line in lines:
        short = re.sub(r"--steps \d+", "--steps 2000 --runtime serial", line).replace("100 101 102", "100 101")
        words = [found for word in shlex.split(short)[1:] for found in sorted(glob.glob(word)) or [word]]
        assert cli.main(words) == 0, line
    assert (tmp_path / "trials.png").stat().st_size > 0 and len(list((tmp_path / "runs").glob("*/seed-10?"))) == 4
    (code,) = [text for language, _, text in FENCE.findall(page) if language == "python"]
    found: dict[str, Any] = {}
    exec(code.replace("300_000", "2_000, runtime='serial', quiet=True"), found)
    assert found["run"].report.steps >= 2_000 and found["run"].config["gamma"] > 0


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "guides").glob("*.md")), ids=lambda p: p.name)
def test_what_a_guide_calls_a_setting_is_one(page: Path) -> None:
    """In the last column of its tables, where the names of this library stand."""
    known = {field.name for name in SYSTEMS for field in fields(load(name).Config)}
    known |= set(inspect.signature(shoal.train).parameters) | set(inspect.signature(shoal.resume).parameters)
    known |= {word.replace("-", "_") for word in re.findall(r"--([a-z-]+)", help.of_command("train"))}
    cells = [line.split("|")[-2] for line in page.read_text("utf-8").splitlines() if line.startswith("| ")]
    code = [part for cell in cells for part in re.findall(r"`([^`]+)`", cell)]
    flags = {flag for part in code for flag in re.findall(r"--([a-z-]+)", part)}
    keywords = {word for part in code for word in re.findall(r"(?:^|[(, ])([a-z_]+)=", part)}
    assert {flag.replace("-", "_") for flag in flags} | keywords <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target


# ------------------------------------------------------------------------------- system pages
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_page_per_system_with_five_headings(system: str) -> None:
    page = SYSTEM_PAGES[system].read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == HEADINGS
    for preset in load(system).PRESETS:
        assert f"`{preset}`" in page, f"preset {preset} is not explained"


def test_the_readmes_picture_is_the_program(tmp_path: Path) -> None:
    (command,) = re.findall(r"`shoal (draw .*?)`", (ROOT / "README.md").read_text(encoding="utf-8"))
    alone = ["--device", "cpu", "--learner-processes", "1", "--output", str(tmp_path / "drawn.svg")]
    assert cli.main([*shlex.split(command), *alone]) == 0
    assert (tmp_path / "drawn.svg").read_bytes() == (ROOT / "docs" / "apex-dqn.svg").read_bytes()


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_system_page_shows_its_drawing_and_when_to_use_it(system: str) -> None:
    page = SYSTEM_PAGES[system].read_text(encoding="utf-8")
    assert f"](pictures/{system}.svg)" in page and "### When to use it" in page and "$$" in page


def raw_formulas(text: str) -> list[str]:
    """Subscripts and powers that stand as plain text, outside code, formulas, HTML and targets of links."""
    text = re.sub(r"^ *```.*?^ *```|\$\$.*?\$\$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\$[^$\n]*\$|`[^`]*`|\]\([^)\s]*\)|<[^>]*>", "", text)
    return re.findall(r"\w?_\{\S*|\S*\^[^\s\d]\S*|\b[A-Za-z\u03b1-\u03c9]_\w+", text)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "systems").glob("*.md")), ids=lambda page: page.stem)
def test_formulas_on_a_page_of_a_system_are_marked_as_formulas(page: Path) -> None:
    assert not raw_formulas(page.read_text(encoding="utf-8"))


def test_a_raw_formula_is_found_and_a_marked_one_is_not() -> None:
    assert raw_formulas("priority^−0.4, γ_PC, S_{t+n}, `a_b`, $x_t$, dqn_zoo") == ["priority^−0.4,", "γ_PC", "S_{t+n},"]
