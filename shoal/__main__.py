"""The command ``shoal``, and ``python -m shoal``."""

import contextlib
import os
import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    with contextlib.suppress(OSError):  # the working directory may be gone
        if sys.path[0] in ("", os.getcwd()):
            sys.path.append(sys.path.pop(0))  # a random.py of the user's own is not the library's
    from shoal.cli.guard import Guard

    guard = Guard()

    def command() -> int:
        from shoal.cli.main import main

        return main()

    return guard.run(command)


if __name__ == "__main__":
    raise SystemExit(main())
