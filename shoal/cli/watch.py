"""``shoal watch`` shows runs as they go on, on a page or in the terminal; ``shoal report`` writes what one sends."""

from __future__ import annotations

import sys
from pathlib import Path

from shoal.api import UsageError
from shoal.cli.words import divide
from shoal.paths import fixed, require_folder, shown
from shoal.settings.flags import options
from shoal.settings.ranges import Port
from shoal.words import counted

FLAGS: dict[str, object] = {"port": Port, "host": str, "open": bool, "terminal": bool}
ALONE = ("--terminal", "--open")  # of them, those that no word follows


def command(args: list[str]) -> int:
    """shoal watch [RUN|DIRECTORY ...]"""
    words, groups = divide(args, ALONE)
    opts = options(groups, FLAGS, "watch")
    paths = [fixed(word) for word in words] or [fixed("runs")]
    if opts.get("terminal"):
        from shoal.run.elsewhere import show

        if others := [f"--{name}" for name in ("port", "host", "open") if name in opts]:
            raise UsageError(f"{others[0]} is of the page, and --terminal shows none")
        if len(words) != 1:
            raise UsageError(f"shoal watch --terminal shows one run, found {len(words)} directories")
        return show(paths[0])
    return serve(paths, opts.get("host", "127.0.0.1"), opts.get("port"), bool(opts.get("open")))


def serve(paths: list[Path], host: str, port: int | None, browse: bool) -> int:
    """Serve the page of the runs in ``paths`` until a signal ends it."""
    from shoal.watch import server

    server.require_packages()
    secret = server.token()
    made = server.make_server(paths, secret, host)
    sock = server.listen(host, port)
    where = server.address(sock, host, secret)
    print(f"watching {', '.join(shown(path) for path in paths)}: {where}", flush=True)
    if host not in ("127.0.0.1", "localhost", "::1"):
        number = sock.getsockname()[1]
        print(
            f"shoal: whoever reaches {host} and has this address can read these runs; nothing is encrypted "
            f"(an ssh tunnel is: `ssh -L {number}:127.0.0.1:{number} HOST`)",
            file=sys.stderr,
        )
    if browse:
        import webbrowser

        webbrowser.open(where)
    made.run(sockets=[sock])
    return 0


def report(args: list[str]) -> int:
    """shoal report RUN..."""
    from shoal.records.atomic_write import write_output
    from shoal.watch.report import html

    words, groups = divide(args)
    if not words:
        raise UsageError("shoal report needs a run directory, for example: shoal report runs/NAME")
    opts = options(groups, {"out": str}, "report")
    out = Path(opts.get("out", "report.html"))
    require_folder(out)
    paths = [fixed(word) for word in words]
    write_output(out, html(paths))
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB, {counted(len(paths), 'run')}")
    return 0
