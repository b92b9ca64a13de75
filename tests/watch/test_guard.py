"""Who may read the page: whoever has the token, from this host, by GET; and only the runs that were asked for."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from noted import noted

pytest.importorskip("starlette.testclient", reason="needs the extra watch, and httpx2", exc_type=ImportError)
pytest.importorskip("plotly", reason="needs the extra watch")
from starlette.testclient import TestClient

from shoal.api import UsageError
from shoal.watch import guard, server
from shoal.watch.catalogue import Catalogue
from shoal.watch.site import Site
from watch.runs import write_run

SECRET = "a-token-of-32-characters-or-more"
PATHS = ["/", "/static/app.js", "/static/plotly.min.js", "/api/runs", "/api/run?run=one", "/api/metrics?run=one",
         "/api/curves?run=one&metric=loss", "/api/times?run=one", "/api/log?run=one&file=run.log",
         "/api/film?run=one&file=1.mp4", "/nothing"]  # fmt: skip


def client(path: Path, known: bool = True, host: str = "127.0.0.1", asked: str = "127.0.0.1:8787") -> TestClient:
    app = server.application(Site(Catalogue([path])), SECRET, host)
    made = TestClient(app, base_url=f"http://{asked}", follow_redirects=False)
    if known:
        assert made.get("/", params={"token": SECRET}).status_code == 303
    return made


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs" / "one")
    return tmp_path / "runs"


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_nothing_is_answered(runs: Path, path: str) -> None:
    stranger = client(runs, known=False)
    wrong = {"cookie": "; ".join(f"{c.name}={SECRET[:-1]}x" for c in client(runs).cookies.jar)}
    for headers in ({}, wrong):
        answer = stranger.get(path, headers=headers)
        assert answer.status_code == 403 and "one" not in answer.text.split() and SECRET not in answer.text
    assert stranger.get("/", params={"token": SECRET + "x"}).status_code == 403
    assert stranger.get("/api/runs", params={"token": SECRET}).status_code == 403, "the token is for the first page"


def test_the_token_becomes_a_cookie_that_no_script_reads_and_no_address_holds(runs: Path) -> None:
    answer = client(runs, known=False).get("/", params={"token": SECRET})
    assert answer.headers["location"] == "/" and answer.headers["cache-control"] == "no-store"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite" in cookie


def test_the_token_is_compared_in_constant_time(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(secrets, "compare_digest", lambda a, b: noted(compared, (a, b), a == b))
    client(runs).get("/api/runs")
    assert compared and all(SECRET.encode() in pair for pair in compared)


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_the_server_answers_get_alone(runs: Path, method: str) -> None:
    assert client(runs).request(method, "/api/runs").status_code == 405


@pytest.mark.parametrize("host, status", [
    ("127.0.0.1:8787", 200), ("localhost:9000", 200), ("LOCALHOST", 200), ("[::1]:8787", 200),
    ("evil.example", 403), ("127.0.0.1.evil.example:8787", 403), ("localhost.evil.example", 403), ("", 403),
    ("10.0.0.7:8787", 403), ("[::1", 403), ("evil.example@127.0.0.1x", 403),
])  # fmt: skip
def test_a_name_that_is_made_to_lead_here_is_refused(runs: Path, host: str, status: int) -> None:
    assert client(runs).get("/api/runs", headers={"host": host}).status_code == status


@pytest.mark.parametrize("host, status", [("10.0.0.7:8787", 200), ("evil.example", 403), ("box.example", 200)])
def test_a_server_for_all_addresses_answers_to_addresses_and_its_own_name(
    runs: Path, monkeypatch: pytest.MonkeyPatch, host: str, status: int
) -> None:
    monkeypatch.setattr(guard.socket, "getfqdn", lambda: "box.example")
    assert client(runs, host="0.0.0.0").get("/api/runs", headers={"host": host}).status_code == status


@pytest.mark.parametrize("headers, status", [
    ({"origin": "http://127.0.0.1:8787"}, 200), ({"origin": "http://127.0.0.1:3000"}, 403),
    ({"origin": "null"}, 403), ({"origin": "http://evil.example"}, 403), ({"sec-fetch-site": "cross-site"}, 403),
    ({"sec-fetch-site": "same-site"}, 403), ({"sec-fetch-site": "same-origin"}, 200), ({"sec-fetch-site": "none"}, 200),
])  # fmt: skip
def test_a_page_of_another_origin_is_refused(runs: Path, headers: dict[str, str], status: int) -> None:
    assert client(runs).get("/api/runs", headers=headers).status_code == status


def test_a_cookie_of_another_server_hides_none_of_this_one(runs: Path) -> None:
    made = client(runs)
    ((name, value),) = ((c.name, c.value) for c in made.cookies.jar)
    headers = {"cookie": f'odd name=1; other="[]{{}}; {name}={value}'}
    assert client(runs, known=False).get("/api/runs", headers=headers).status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_has_a_policy_and_is_kept_by_nobody(runs: Path, path: str) -> None:
    for made in (client(runs), client(runs, known=False)):
        headers = made.get(path).headers
        policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
        assert policy["script-src"] == "'self'" and policy["default-src"] == "'none'"
        assert policy["frame-ancestors"] == "'none'" and headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        if "plotly" not in path:
            assert headers["cache-control"] == "no-store"


def test_the_page_has_no_inline_script(runs: Path) -> None:
    text = client(runs).get("/").text
    assert "<script" in text and all(" src=" in part.partition(">")[0] for part in text.split("<script")[1:])
    assert " on" not in text.replace(" on ", ""), "no handler in an attribute"


OUTSIDE = ["../secret.log", "..%2fsecret.log", "/etc/passwd", "logs/../../secret.log", "run.log/../../x", "\0", "", ".",
           "link.log", "linked", "pipe.log", ".hidden.log"]  # fmt: skip


@pytest.mark.parametrize("file", OUTSIDE)
def test_no_log_outside_of_a_run_is_shown(runs: Path, file: str) -> None:
    import os

    (runs / "secret.log").write_text("secret")
    logs = runs / "one" / "logs"
    (logs / "link.log").symlink_to(runs / "secret.log")
    (logs / "linked").symlink_to(runs)
    (logs / ".hidden.log").write_text("secret")
    os.mkfifo(logs / "pipe.log")
    answer = client(runs).get("/api/log", params={"run": "one", "file": file})
    assert answer.status_code == 404 and "secret" not in answer.text.replace(file, "")


@pytest.mark.parametrize("name", ["../other", "/etc", "one/..", "../runs/one", "", "linked"])
def test_no_run_outside_of_what_was_asked_for_is_shown(runs: Path, name: str) -> None:
    write_run(runs.parent / "other")
    (runs / "linked").symlink_to(runs.parent / "other")
    assert client(runs).get("/api/run", params={"run": name}).status_code == 404
    assert [run["name"] for run in client(runs).get("/api/runs").json()["runs"]] == ["one"]


@pytest.mark.parametrize(
    "file", ["config.json", "metrics.jsonl", "program.json", "logs", "evaluations.csv", "run.lock"]
)
def test_a_file_that_is_a_link_is_not_followed(runs: Path, file: str) -> None:
    other = write_run(runs.parent / "other", system="secret", env="Secret-v0")
    (other / "evaluations.csv").write_text("steps,mean\n1,77123\n")
    (other / "logs" / "run.log").write_text("2026-01-02 03:04:05,678 INFO 77123\n")
    path = runs / "one" / file
    if path.is_dir():
        for each in path.iterdir():
            each.unlink()
        path.rmdir()
    path.unlink(missing_ok=True)
    path.symlink_to(other / file)
    answer = client(runs).get("/api/run", params={"run": "one"})
    assert answer.status_code == 200 and "Secret-v0" not in answer.text and "77123" not in answer.text


def test_a_film_is_sent_in_the_ranges_that_a_player_asks_for(runs: Path) -> None:
    videos = runs / "one" / "videos"
    videos.mkdir()
    (videos / "000000000100.mp4").write_bytes(bytes(range(100)))
    made, asked = client(runs), {"run": "one", "file": "000000000100.mp4"}
    whole = made.get("/api/film", params=asked)
    assert (
        whole.status_code == 200 and whole.content == bytes(range(100)) and whole.headers["content-type"] == "video/mp4"
    )
    for header, expected in (
        ("bytes=10-19", range(10, 20)),
        ("bytes=90-", range(90, 100)),
        ("bytes=95-500", range(95, 100)),
    ):
        part = made.get("/api/film", params=asked, headers={"range": header})
        assert part.status_code == 206 and part.content == bytes(expected), header
        assert part.headers["content-range"] == f"bytes {expected[0]}-{expected[-1]}/100"
    for header in (
        "bytes=500-",
        "bytes=x-y",
        "bytes=-5",
        f"bytes={'9' * 5_000}-",
        f"bytes=0-{'9' * 5_000}",
        "nonsense",
    ):
        assert made.get("/api/film", params=asked, headers={"range": header}).content == bytes(range(100)), header


@pytest.mark.parametrize(
    "given", ["short", "with space in the middle of it", "semicolon;semicolon;semicolon", "ü" * 20]
)
def test_a_token_of_the_environment_that_no_cookie_holds_is_refused(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv(server.TOKEN, given)
    with pytest.raises(UsageError, match="expects 16 or more"):
        server.token()


def test_tokens_are_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(server.TOKEN, raising=False)
    assert len({server.token() for _ in range(10)}) == 10 and len(server.token()) >= 43


def test_a_port_that_is_taken_is_said_or_passed_over() -> None:
    with server.listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}"):
            server.listen("127.0.0.1", port)
        assert server.address(first, "127.0.0.1", "x") == f"http://127.0.0.1:{port}/?token=x"


def test_without_the_extra_one_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PACKAGES", ("starlette", "no_such_package"))
    with pytest.raises(UsageError, match=r"shoal watch needs no_such_package: pip install .*\[watch\]"):
        server.require_packages()
