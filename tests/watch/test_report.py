"""A report: one file that holds everything, runs only its own scripts and loads nothing; and the card of a notebook."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.api import UsageError
from shoal.records.atomic_write import write_atomic
from shoal.watch import report
from shoal.watch.files import RunFiles
from shoal.watch.folder import Folder
from watch.runs import write_run
from watch.test_page import MARKUP


@pytest.fixture(autouse=True)
def small_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "require_packages", lambda: None)
    monkeypatch.setattr(report, "plotly_script", lambda: b"let Plotly = '</script>';")


def test_a_report_holds_pictures_settings_machine_versions_and_events(tmp_path: Path) -> None:
    text = report.html([write_run(tmp_path / "one", ended="steps")])
    for part in ("impala on CartPole-v1, seed 0", "learning_rate", "preset classic", "python 3", "cores 2",
                 "3 processes start", "<svg", "bottleneck"):  # fmt: skip
        assert part in text, part
    (data,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)
    titles = [figure["layout"]["title"]["text"] for figure in json.loads(data)]
    assert titles[0] == "episode_return" and {"loss", "time of actor", "memory"} <= {*titles}
    assert all(f'id="figure-{i}"' in text for i in range(len(titles)))


@pytest.mark.parametrize("damaged", [False, True])
def test_a_report_reads_the_settings_once(damaged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may have megabytes, and each curve is named by them."""
    run = write_run(tmp_path / "one", ended="steps")
    if damaged:
        (run / "config.json").write_text("[" * 1_000)
    read, parse = list[tuple[str, ...]](), Folder.json

    def noted(self: Folder, *parts: str) -> Any:
        read.append(parts)
        return parse(self, *parts)

    monkeypatch.setattr(Folder, "json", noted)
    text = report.html([run])
    assert read.count(("config.json",)) == 1 and ("config.json: damaged" in text) is damaged
    files = RunFiles(run)
    assert files.config() is files.config()
    write_atomic(run / "config.json", (write_run(tmp_path / "two", seed=7) / "config.json").read_text())
    assert files.config()["seed"] == 7 and "config.json" not in files.problems, "written again, and so read again"
    (run / "config.json").unlink()
    assert files.config() == {}


def test_a_report_loads_nothing_and_runs_only_its_own_scripts(tmp_path: Path) -> None:
    text = report.html([write_run(tmp_path / "one")])
    assert not re.search(r"""(src|href)=["']?(?!data:)\w""", text) and "<link" not in text
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', text)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert policy.startswith("default-src 'none'") and [h for h in hashes if f"'sha256-{h}'" in policy] == hashes
    assert len(scripts) == 2 and "unsafe-inline" not in policy.split("style-src")[0]


def test_markup_in_a_run_stays_text_in_its_report_and_its_card(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one", env=MARKUP, **dict[str, Any]({MARKUP: MARKUP}))
    (path / "logs" / "run.log").write_text(f"2026-01-02 03:04:05,678 WARNING {MARKUP}\n")
    (path / "evaluations.csv").write_text(f"steps,{MARKUP.replace(',', '')}\n1,{MARKUP}\n")
    for text in (report.html([path]), report.card(path)):
        assert "<img" not in text and "<script>alert" not in text and "&lt;script&gt;alert(1)" in text


def test_several_runs_are_in_the_same_figures(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "runs" / "b", learning_rate=0.1)
    text = report.html([tmp_path / "runs"])
    assert "2 runs" in text and "Settings that differ" in text
    (data,) = re.findall(r'id="figures">(.*?)</script>', text, re.DOTALL)
    assert [line["name"] for line in json.loads(data)[0]["data"]] == ["a", "b"]


def test_the_report_of_a_population_tells_machine_versions_seed_and_settings(tmp_path: Path) -> None:
    write_run(tmp_path / "pbt" / "members" / "000")
    facts = {"system": "ppo", "seed": 17, "values": {"gamma": 0.875}, "origins": {"gamma": "flag"}}
    (tmp_path / "pbt" / "population.json").write_text(json.dumps(facts))
    (tmp_path / "pbt" / "lineage.csv").write_text("child,parent,step,score,parent_score\n1,0,10,248.63636363636363,\n")
    text = report.html([tmp_path / "pbt"])
    for part in ("python 3", "cores 2", ">17<", ">gamma<", ">0.875<", ">248.6<"):
        assert part in text, part
    (tmp_path / "pbt" / "population.json").write_text("{")
    assert "population.json: damaged" in report.html([tmp_path / "pbt"])


def test_runs_of_two_systems_differ_by_their_system(tmp_path: Path) -> None:
    other = write_run(tmp_path / "runs" / "b")
    (other / "config.json").write_text((other / "config.json").read_text().replace("impala", "dqn"))
    write_run(tmp_path / "runs" / "a")
    assert "<tr><td>system</td><td>impala</td><td>dqn</td></tr>" in report.html([tmp_path / "runs"])


def test_a_directory_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run in"):
        report.html([tmp_path])
    with pytest.raises(UsageError, match="no such directory"):
        report.html([tmp_path / "nothing"])


def test_a_run_shows_itself_in_a_notebook(tmp_path: Path) -> None:
    run = shoal.Run.open(write_run(tmp_path / "one"))
    assert "<svg" in run._repr_html_() and "300 of 1,000" in run._repr_html_()
    assert run.report_html().startswith("<!doctype html>")
