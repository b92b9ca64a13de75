"""Take the pictures of docs/watch.md: the page of ``shoal watch``, in Chromium, of runs that have been made.

python scripts/site/watch.py RUNS RUN POPULATION

RUNS is a directory of runs, RUN and POPULATION the names of two in it. Needs playwright, Pillow and a Chromium.
"""

from __future__ import annotations

import io
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from shoal.watch import server

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
HOST, SECRET = "127.0.0.1", "a-token-of-the-pictures"
MOST_BYTES = 100_000
WINDOWS = {"": dict(width=1300, height=900), "phone": dict(width=390, height=844)}


def keep(page: Any, name: str) -> None:
    """Write the page as it is to ``watch-NAME.webp``."""
    page.wait_for_timeout(1_500)  # charts move into place
    file = PICTURES / f"watch-{name}.webp"
    Image.open(io.BytesIO(page.screenshot())).save(file, quality=70, method=6)
    assert file.stat().st_size < MOST_BYTES, f"{file} has {file.stat().st_size:,} bytes"
    print(f"{file.name}: {file.stat().st_size:,} bytes")


def take(browser: Any, address: str, run: str, population: str) -> None:
    """Take the picture of every view."""
    page = browser.new_page(viewport=WINDOWS[""], color_scheme="light")
    page.goto(address)
    base = address.partition("?")[0]
    page.wait_for_selector("tbody a")
    keep(page, "list")
    page.goto(f"{base}#/run/{run}")
    page.locator("[data-role]").last.hover()
    page.wait_for_selector(".chart .main-svg")
    keep(page, "overview")
    for tab, shown in {
        "curves": ".main-svg", "time": ".main-svg", "evaluations": "td", "events": "td", "settings": "td",
        "logs": "pre",
    }.items():  # fmt: skip
        page.goto(f"{base}#/run/{run}/{tab}")
        page.wait_for_selector(shown)
        keep(page, tab)
    page.goto(f"{base}#/run/{population}")
    page.wait_for_selector(".main-svg")
    keep(page, "population")
    phone = browser.new_page(viewport=WINDOWS["phone"], color_scheme="dark", has_touch=True, is_mobile=True)
    phone.goto(address)
    phone.wait_for_selector("tbody a")
    phone.goto(f"{base}#/run/{run}")
    phone.locator("[data-role]").first.tap()
    phone.evaluate("document.querySelector('.program').scrollIntoView()")
    keep(phone, "phone")


def main(runs: Path, run: str, population: str) -> None:
    made, sock = server.make_server([runs], SECRET, HOST), server.listen(HOST, None)
    thread = threading.Thread(target=made.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        with sync_playwright() as playwright:
            found = shutil.which("chromium") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
            take(browser, server.address(sock, HOST, SECRET), run, population)
    finally:
        made.should_exit = True
        thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
