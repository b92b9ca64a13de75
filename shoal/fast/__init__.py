"""What exists for speed alone. Each piece takes the place of plain code that does the same; one test holds both
together.

``SHOAL_PLAIN=1`` in the environment turns all of it off. What each piece gains:
benchmarks/results/notes-on-speed.md."""

import os

ENABLED = os.environ.get("SHOAL_PLAIN", "") in ("", "0")
