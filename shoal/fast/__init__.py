"""Code that exists for speed alone. Each piece replaces plain code with the same result; a test compares both.

``SHOAL_PLAIN=1`` in the environment turns all of it off. The gain of each piece is listed in
benchmarks/results/notes-on-speed.md.
"""

import os

ENABLED = os.environ.get("SHOAL_PLAIN", "") in ("", "0")
