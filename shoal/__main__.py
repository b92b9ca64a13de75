"""The command ``shoal``, and ``python -m shoal``."""

import contextlib
import os
import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    with contextlib.suppress(OSError):  # the working directory may be gone
        if sys.path[0] in ("", os.getcwd()):
            here = sys.path.pop(0)  # what lies beside a run is imported where its user names it, by ``own_code`` alone
            if os.path.dirname(os.path.dirname(os.path.abspath(__file__))) == os.getcwd():
                sys.path.append(here)  # Shoal itself is there
    from shoal.cli.guard import Guard

    guard = Guard()

    def command() -> int:
        from shoal.dependencies import unsuitable

        if told := unsuitable():
            print(f"shoal: {told}", file=sys.stderr)
            return 2
        from shoal.cli.main import main

        return main()

    return guard.run(command)


if __name__ == "__main__":
    raise SystemExit(main())
