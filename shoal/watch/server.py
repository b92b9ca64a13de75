"""The server of the page: Starlette answers, uvicorn listens; both are of the extra ``watch``."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import secrets
import socket
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.api import UsageError
from shoal.extras import pip_install
from shoal.untrusted import excerpt
from shoal.watch.site import Site, Unknown

if TYPE_CHECKING:
    import uvicorn
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

PORT, PORTS = 8787, 20  # the first port that is tried where none is asked for, and how many after it
PACKAGES = ("starlette", "uvicorn", "plotly")
TOKEN = "SHOAL_WATCH_TOKEN"  # an environment variable that gives the token, for pages that outlive their server
LEAST_TOKEN = 16  # characters
STATIC = {
    **dict.fromkeys(("app.js", "elements.js", "program.js", "views.js"), "text/javascript"),
    "app.css": "text/css",
}
CHUNK = 4 << 20  # bytes of a film that are sent at once
KEEP = {"cache-control": "private, max-age=86400"}  # of what is the same for everybody and holds no token


def require_packages() -> None:
    """UsageError where the extra is not installed."""
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        raise UsageError(f"shoal watch needs {', '.join(missing)}: {pip_install('watch')}")


def plotly_script() -> bytes:
    """Return the chart library, as its package holds it."""
    return (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()


def own_file(name: str) -> bytes:
    """Return a file of the page that Shoal ships."""
    return (resources.files("shoal.watch") / "static" / name).read_bytes()


def token() -> str:
    """Return a token of 256 bits, or that of the environment. UsageError for one that is short."""
    given = os.environ.get(TOKEN)
    if given is None:
        return secrets.token_urlsafe(32)
    if len(given) < LEAST_TOKEN or not given.isascii() or not given.replace("-", "").replace("_", "").isalnum():
        raise UsageError(f"{TOKEN} expects {LEAST_TOKEN} or more letters, digits, '-' and '_'")
    return given


def application(site: Site, secret: str, host: str = "127.0.0.1") -> ASGIApp:
    """Return the page of ``site`` as an ASGI application that answers whoever has the token ``secret``."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    from shoal.watch.guard import Guard, names_of

    def data(answer: Callable[[Any], Any]) -> Callable[[Request], Response]:
        def call(request: Request) -> Response:
            try:
                return JSONResponse(answer(request.query_params))
            except Unknown as error:
                return JSONResponse({"error": str(error)}, 404)
            except OSError as error:
                return JSONResponse({"error": f"cannot be read: {error.strerror or error}"}, 404)

        return call

    def curves(query: Any) -> Any:
        names, wanted = query.getlist("run"), query.getlist("metric")[:40]
        return site.curves(names, wanted, _axis(query), _smooth(query), query.get("log") == "1")

    def film(request: Request) -> Response:
        file = request.query_params.get("file", "")
        try:
            return _film(site, request.query_params.get("run", ""), file, request.headers.get("range", ""))
        except (Unknown, OSError):
            return PlainTextResponse("404: no such film\n", 404)

    def page(request: Request) -> Response:
        return Response(own_file("index.html"), media_type="text/html")

    def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name == "plotly.min.js":
            return Response(plotly_script(), media_type="text/javascript", headers=KEEP)
        if name not in STATIC:
            return PlainTextResponse("404\n", 404)
        return Response(own_file(name), media_type=STATIC[name])

    routes = [
        Route("/", page), Route("/static/{name}", static), Route("/api/film", film),
        Route("/api/runs", data(lambda query: site.listing())),
        Route("/api/run", data(lambda query: site.run(query.get("run", "")))),
        Route("/api/metrics", data(lambda query: site.metrics(query.getlist("run")))),
        Route("/api/curves", data(curves)),
        Route("/api/times", data(lambda query: site.times(query.get("run", ""), _axis(query)))),
        Route("/api/log", data(lambda query: {"text": site.log(query.get("run", ""), query.get("file", ""))})),
    ]  # fmt: skip
    names, any_address = names_of(host)
    return Guard(Starlette(routes=routes), secret, names, any_address)


def _axis(query: Any) -> str:
    return "seconds" if query.get("x") == "seconds" else "steps"


def _smooth(query: Any) -> float:
    try:
        return min(0.999, max(0.0, float(query.get("smooth", "0"))))
    except ValueError:
        return 0.0


def _film(site: Site, name: str, file: str, wanted: str) -> Response:
    """A film, or the range of its bytes that a player asks for."""
    from starlette.responses import Response

    with site.film(name, file).folder.open("videos", file) as opened:
        size = os.fstat(opened.fileno()).st_size
        first, last = _range(wanted, size)
        opened.seek(first)
        content = opened.read(last - first + 1)
    headers = {"accept-ranges": "bytes"}
    if len(content) == size:
        return Response(content, 200, headers, "video/mp4")
    headers["content-range"] = f"bytes {first}-{first + len(content) - 1}/{size}"
    return Response(content, 206, headers, "video/mp4")


def _range(wanted: str, size: int) -> tuple[int, int]:
    """The first and last byte that a header asks for, ``CHUNK`` bytes at most; the beginning for any other header."""
    found = re.fullmatch("bytes=([0-9]{1,15})-([0-9]{0,15})", wanted)
    first = int(found[1]) if found is not None and int(found[1]) < size else 0
    last = int(found[2]) if found is not None and found[2] else size - 1
    return first, min(max(first, last), size - 1, first + CHUNK - 1)


# ---------------------------------------------------------------------------------------- listening
def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens on ``port`` or, without one, on the first of ``PORTS`` that is free. UsageError
    where none is."""
    if not host:  # which sockets take for every address of this machine
        raise UsageError("--host expects an address of this machine, found ''")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tried = [port] if port is not None else [*range(PORT, PORT + PORTS), 0]
    error: Exception | None = None
    for each in tried:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, each))
        except (OSError, TypeError, ValueError) as refused:  # also of what cannot be a name
            sock.close()
            error = refused
            continue
        sock.listen(128)
        return sock
    assert error is not None, "something was tried"
    where = excerpt(f"{host}:{port}" if port is not None else host)
    why = getattr(error, "strerror", None) or error
    raise UsageError(f"cannot listen on {where}: {why}; another --port or --host may do") from None


def address(sock: socket.socket, host: str, secret: str) -> str:
    """Return the address that opens the page, with its token."""
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    shown = f"[{shown}]" if ":" in shown else shown
    return f"http://{shown}:{sock.getsockname()[1]}/?token={secret}"


def make_server(directories: list[Path], secret: str, host: str) -> uvicorn.Server:
    """Return a server of the runs in ``directories``, to be run on a socket. Requests are not logged: the first has the
    token in it."""
    import uvicorn

    from shoal.watch.catalogue import Catalogue
    from shoal.watch.connection import Connection, Sparse
    from shoal.watch.quiet import QuietServer

    app = application(Site(Catalogue(directories)), secret, host)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, proxy_headers=False, ws="none",
        lifespan="off", timeout_graceful_shutdown=2, http=Connection, loop="asyncio",
    )  # fmt: skip
    for name in ("uvicorn.error", "asyncio"):  # which write a line for every connection that is none
        logging.getLogger(name).addFilter(Sparse())
    return QuietServer(config)
