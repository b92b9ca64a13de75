"""What a request must be before it is answered: a GET of this host, of this origin, by somebody who has the token."""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
import socket
from collections.abc import Iterable
from email.utils import formatdate
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "media-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY, "cache-control": "no-store", "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer", "x-frame-options": "DENY", "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}  # fmt: skip
LOOPBACK = ("127.0.0.1", "localhost", "::1")
DENIED = "403: this page needs the address with its token, which `shoal watch` printed when it started\n"


class Guard:
    """ASGI middleware before ``app``. hosts: the names by which this server may be asked for; by an address of its own,
    too, where it listens on all of them. A page of somebody else, whose name is made to lead here (DNS rebinding), asks
    for another name. The token is compared in constant time; given in the address it becomes a cookie, so that it
    stays in no history."""

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str], any_address: bool = False) -> None:
        self.app, self._token = app, token
        self._hosts, self._any_address = {host.lower() for host in hosts}, any_address
        self._cookie = f"shoal-watch-{hashlib.sha256(token.encode()).hexdigest()[:12]}"  # other servers have others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no web sockets: the connection is closed

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in {**HEADERS, "date": formatdate(usegmt=True)}.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self.app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if scope["method"] != "GET":
            return PlainTextResponse("405: this server answers GET alone\n", 405, {"allow": "GET"})
        host = headers.get("host", "")
        if not self._is_own(host):
            return PlainTextResponse("403: this server has another name\n", 403)
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
            return PlainTextResponse("403: asked for by a page of another origin\n", 403)
        if headers.get("sec-fetch-site", "same-origin") in ("cross-site", "same-site") and scope["path"] != "/":
            return PlainTextResponse("403: asked for by a page of another origin\n", 403)
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and given and self._is_token(given):
            response = RedirectResponse("/", 303)
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="lax", path="/")
            return response
        return None if self._is_token(_cookie(headers, self._cookie)) else PlainTextResponse(DENIED, 403)

    def _is_own(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        return name in self._hosts or (self._any_address and _is_address(name))

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._token.encode())


def _cookie(headers: Headers, name: str) -> str:
    for line in headers.getlist("cookie"):
        for part in line.split(";"):  # one by one: a damaged cookie of another server hides none behind it
            try:
                found = SimpleCookie(part.strip()).get(name)
            except CookieError:
                continue
            if found is not None:
                return found.value
    return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def names_of(host: str) -> tuple[list[str], bool]:
    """(names by which a server that listens on ``host`` may be asked for, whether any address will do)."""
    if host in ("0.0.0.0", "::", ""):
        return [*LOOPBACK, socket.gethostname(), socket.getfqdn()], True
    return [*LOOPBACK, host], False
