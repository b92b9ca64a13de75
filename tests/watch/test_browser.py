"""The page in a real browser: it moves with the run, survives its server's restart, and shows names as text."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra watch")
pytest.importorskip("plotly", reason="needs the extra watch")
api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no Chromium is installed", allow_module_level=True)

from shoal.records.metric_files import MetricFiles  # noqa: E402
from shoal.records.run_lock import RunLock  # noqa: E402
from shoal.watch import server  # noqa: E402
from tests.watch.runs import snapshot, write_run  # noqa: E402

SECRET = "a-token-of-32-characters-or-more"
BAR = "() => document.querySelector('rect.fill').getAttribute('width')"
POINTS = "() => document.querySelector('.chart').data[0].x.length"


@contextlib.contextmanager
def serving(path: Path, port: int = 0) -> Iterator[tuple[str, int]]:
    made, sock = server.make_server([path], SECRET, "127.0.0.1"), server.listen("127.0.0.1", port)
    thread = threading.Thread(target=made.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        yield server.address(sock, "127.0.0.1", SECRET), sock.getsockname()[1]
    finally:
        made.should_exit = True
        thread.join()
        sock.close()


@pytest.fixture
def page() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        made = browser.new_page()
        made.set_default_timeout(60_000)
        made.errors = []
        made.on("pageerror", lambda error: made.errors.append(str(error)))
        yield made
        assert not made.errors
        browser.close()


def test_the_page_of_a_running_run_moves_and_survives_its_server(page: Any, tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    lock, files = RunLock(path), MetricFiles(path, 3)
    with serving(path) as (address, port):
        page.goto(address)
        page.wait_for_selector("rect.fill")
        page.wait_for_function("() => document.querySelector('.chart')?.data")
        assert SECRET not in page.url and page.evaluate("document.cookie") == ""
        bar, points = page.evaluate(BAR), page.evaluate(POINTS)
        files.update(snapshot(4, fill={"unrolls": 0.75}, phases={"actor": ["env", "env"], "learner": ["learn"]}))
        page.wait_for_function(f"([bar, points]) => ({BAR})() !== bar && ({POINTS})() > points", arg=[bar, points])
        page.wait_for_function("() => !document.querySelector('[data-phase=restarting]')")
    page.wait_for_function("() => document.getElementById('link').textContent.includes('gone')")
    files.update(snapshot(5))
    with serving(path, port):
        page.wait_for_function("() => document.body.innerText.includes('500 of 1,000')")
        files.close()
        lock.release()
        (path / "report.json").write_text('{"format": 2, "reason": "steps", "steps": 500, "seconds": 2.5}')
        page.wait_for_function("() => document.body.innerText.includes('ended: steps')")


def test_a_name_that_is_markup_stays_text_and_without_the_token_nothing_is_shown(page: Any, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "<script>alert(1)<")
    with serving(tmp_path / "runs") as (address, _):
        refused = page.goto(address.partition("?")[0])
        assert refused.status == 403
        page.goto(address)
        page.get_by_text("<script>alert(1)<", exact=True).click()
        page.wait_for_selector("rect.fill")
        assert page.inner_text("#where") == "<script>alert(1)<"
        for tab in ("Curves", "Time", "Evaluations", "Events", "Configuration", "Logs"):
            page.get_by_role("link", name=tab, exact=True).click()
            page.wait_for_selector(f"nav a[aria-current]:text-is('{tab}')")
        page.wait_for_function("() => document.querySelector('pre')?.textContent.includes('3 processes start')")


def test_a_report_draws_its_figures_without_a_network(page: Any, tmp_path: Path) -> None:
    from shoal.watch.report import html

    (tmp_path / "report.html").write_text(html([write_run(tmp_path / "one")]), encoding="utf-8")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_function("() => document.querySelectorAll('.chart .main-svg').length > 5")
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
