"""The page in a real browser: it moves with the run, survives its server's restart, and shows names as text."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
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

sys.path.append(str(Path(__file__).parents[1] / "faults"))
from trainings import SMALL, Training  # noqa: E402

from shoal.records.metric_files import MetricFiles  # noqa: E402
from shoal.records.run_lock import RunLock  # noqa: E402
from shoal.watch import server  # noqa: E402
from watch.runs import snapshot, write_run  # noqa: E402

SECRET = "a-token-of-32-characters-or-more"
BAR = "() => document.querySelector('rect.fill').getAttribute('width')"
FILL = "() => [...document.querySelectorAll('rect.fill')].map((bar) => bar.getAttribute('width')).join()"
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


def test_what_needs_no_chart_does_not_wait_for_the_library_and_one_that_failed_is_asked_for_again(
    page: Any, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        write_run(tmp_path / name)
    page.set_default_timeout(6_000)
    asked: list[Any] = []
    page.route("**/plotly.min.js", lambda route: asked.append(route))
    with serving(tmp_path) as (address, _):
        page.goto(address)
        page.wait_for_selector("tr:nth-child(2)")
        page.wait_for_load_state("networkidle")
        assert not asked, "the list has no chart"
        page.get_by_text("one", exact=True).click()
        page.wait_for_selector("rect.fill")  # the program, before the library is there
        page.wait_for_function("() => document.title.includes('one')")
        for _ in range(200):
            page.wait_for_timeout(20 if not asked else 0)
        assert page.evaluate("() => !window.Plotly")
        asked.pop().abort()
        page.wait_for_function("() => document.getElementById('link').textContent.includes('did not load')")
        for _ in range(200):
            page.wait_for_timeout(20 if not asked else 0)
        asked.pop().continue_()
        page.wait_for_function("() => document.querySelector('.chart')?.data")


def test_the_picture_is_as_drawn_whatever_the_replicas_change_to(page: Any, tmp_path: Path) -> None:
    """Each symbol has another shape; a replica that worked and now waits has no colour of its old one."""
    path = write_run(tmp_path / "one")
    lock, files = RunLock(path), MetricFiles(path, 3)
    shown = "() => document.querySelector('.program svg').outerHTML"
    with serving(path) as (address, _):
        page.goto(address)
        looks = (
            (["wait:params", "env"], "wait"),
            (["dead", "env"], "dead"),
            (["env", "dead"], "work"),
            (["env"] * 2, "work"),
        )
        for row, (phases, first) in enumerate(looks, 4):
            files.update(snapshot(row, phases={"actor": phases, "learner": ["learn"]}))
            now = f"document.querySelector('.figures').innerText.includes('{row * 100} of')"
            page.wait_for_function(f"() => document.querySelector('.figures') && {now}")
            page.wait_for_function(f"() => document.querySelector('[data-phase]').dataset.phase === '{first}'")
            page.wait_for_function("() => document.getElementById('link').textContent === 'live'")
            told = page.evaluate("async () => (await (await fetch('/api/run?run=one')).json()).svg")
            parsed = "new DOMParser().parseFromString(svg, 'image/svg+xml').documentElement"
            drawn = f"svg => document.importNode({parsed}, true)"
            assert page.evaluate(shown) == page.evaluate(f"svg => ({drawn})(svg).outerHTML", told)
    files.close()
    lock.release()


def test_a_run_without_logs_and_numbers_in_a_german_browser_are_told_in_words(page: Any, tmp_path: Path) -> None:
    path = write_run(tmp_path / "runs" / "one", ended="steps")
    shutil.rmtree(path / "logs")
    german = page.context.browser.new_page(locale="de-DE", viewport={"width": 400, "height": 800})
    with serving(tmp_path / "runs") as (address, _):
        german.goto(address)
        german.get_by_role("cell", name="300", exact=True).wait_for()
        assert german.get_by_role("button", name="Compare chosen").is_disabled()
        german.get_by_role("checkbox").check()
        assert german.get_by_role("button", name="Compare chosen").is_enabled()
        assert german.evaluate("async () => (await import('/static/elements.js')).short(20281.5)") == "20,282"
        german.get_by_role("link", name="one").click()
        german.wait_for_selector(".program text")
        size = "document.querySelector('.program text').getBoundingClientRect().height"
        assert german.evaluate(size) > 11, "letters are large enough to be read on a phone"
        for tab in ("Events", "Logs"):
            german.get_by_role("link", name=tab, exact=True).click()
            german.get_by_text("no log yet").wait_for()
        assert german.get_by_label("log", exact=True).is_hidden()


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


def test_the_page_of_a_training_moves_shows_a_killed_actor_and_ends_with_it(page: Any, tmp_path: Path) -> None:
    training = Training(tmp_path / "impala", *SMALL, "--hidden", "8", "--steps", "1000000000")
    try:
        actor, _ = training.pids("actor-0", "learner-0")
        with serving(training.folder / "r") as (address, _):
            page.goto(address)
            page.wait_for_selector("rect.fill")
            page.wait_for_function(f"() => document.querySelector('.chart')?.data?.[0] && ({POINTS})() > 1")
            bars, points = page.evaluate(FILL), page.evaluate(POINTS)
            moved = f"([bars, points]) => ({FILL})() !== bars && ({POINTS})() > points"
            page.wait_for_function(moved, arg=[bars, points])
            os.kill(actor, signal.SIGKILL)
            page.wait_for_function("() => /restarts\\s+1/.test(document.querySelector('.figures').innerText)")
            page.get_by_role("link", name="Events", exact=True).click()
            page.get_by_text("killed by SIGKILL").first.wait_for()
            training.end()
            page.get_by_role("link", name="Overview", exact=True).click()
            page.wait_for_function("() => document.querySelector('.figures')?.innerText.includes('ended: ')")
            page.wait_for_function("() => document.getElementById('link').textContent === 'ended'")
    finally:
        training.process.kill()
        training.process.wait()


def test_a_report_on_a_phone_keeps_its_titles_free(page: Any, tmp_path: Path) -> None:
    from shoal.watch.report import html

    (tmp_path / "report.html").write_text(html([write_run(tmp_path / "one")]), encoding="utf-8")
    phone = page.context.browser.new_page(has_touch=True, is_mobile=True, viewport={"width": 390, "height": 800})
    phone.goto((tmp_path / "report.html").as_uri())
    phone.wait_for_function("() => document.querySelectorAll('.chart .main-svg').length > 5")
    assert phone.locator(".modebar-btn").count() == 0
    assert phone.evaluate("document.documentElement.scrollWidth") == 390


def test_the_names_of_axes_are_within_their_charts_and_states_are_told_in_words(page: Any, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "one", rows=1, ended="seconds")
    below = """() => [...document.querySelectorAll('.chart .xtitle')].map((title) =>
        title.getBoundingClientRect().bottom - title.closest('.chart').getBoundingClientRect().bottom)"""
    with serving(tmp_path / "runs") as (address, _):
        page.goto(address)
        page.get_by_text("ended: seconds", exact=True).wait_for()
        page.get_by_role("link", name="one").click()
        page.wait_for_selector(".chart .xtitle")
        page.wait_for_function("() => document.querySelectorAll('.chart .xtitle').length === 3")
        assert max(page.evaluate(below)) < -2
        first, last = page.evaluate("document.querySelector('.chart')._fullLayout.xaxis.range")
        assert first == 0 and last > 100, "one point alone is shown on an axis from the beginning"
        assert page.evaluate("getComputedStyle(document.querySelector('.part')).position") == "static"
        page.locator("[data-role=actor]").hover()
        assert page.evaluate("getComputedStyle(document.querySelector('.part')).position") == "sticky"
        page.get_by_role("link", name="Evaluations", exact=True).click()
        page.get_by_text("none yet", exact=True).wait_for()


@pytest.mark.parametrize("width, scheme", [(390, "dark"), (1300, "light")])
def test_each_view_fits_its_window_and_is_reached_by_keyboard(
    page: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    write_run(tmp_path / "runs" / ("a-name-without-a-space-" * 6))
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    with serving(tmp_path / "runs") as (address, _):
        page.goto(address)
        page.wait_for_selector("tbody a")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.get_by_role("button", name="run", exact=True).focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.textContent") == "run ▲", "it is still at the button"
        page.keyboard.press("/")
        page.keyboard.type("a-name")
        page.get_by_role("link", name="a-name").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("[data-role=actor]")
        page.locator("[data-channel=unrolls]").focus()
        assert "25% full" in page.inner_text(".part")
        for tab in ("Curves", "Time", "Evaluations", "Events", "Configuration", "Logs", "Overview"):
            page.get_by_role("link", name=tab, exact=True).focus()
            page.keyboard.press("Enter")
            page.wait_for_selector(f"nav a[aria-current]:text-is('{tab}')")
            page.wait_for_function("() => document.querySelector('main').lastElementChild.children.length > 0")
            assert page.evaluate("document.documentElement.scrollWidth") == width, tab
        page.locator("[data-role=actor]").focus()
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelector('select')?.value === 'actor-0.log'")
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")


def test_a_tap_tells_the_figures_and_a_click_opens_the_log(page: Any, tmp_path: Path) -> None:
    with serving(write_run(tmp_path / "one")) as (address, _):
        page.goto(address)
        page.locator("[data-role=learner]").hover()
        assert "learn 90%" in page.inner_text(".part") and "learner-bound" in page.inner_text(".part")
        page.locator("[data-channel=params]").click()
        assert "versions/s" in page.inner_text(".part") and "logs" not in page.url
        phone = page.context.browser.new_page(has_touch=True, viewport={"width": 390, "height": 800})
        phone.goto(address)
        phone.locator("[data-role=actor]").tap()
        assert "env 70%" in phone.inner_text(".part") and "logs" not in phone.url
        phone.get_by_role("button", name="log of actor").tap()
        phone.wait_for_function("() => document.querySelector('select')?.value === 'actor-0.log'")
        page.locator("[data-role=actor]").click()
        page.wait_for_function("() => document.querySelector('select')?.value === 'actor-0.log'")
