"""toys"""

from collections.abc import Callable
from typing import Any

TOYS: dict[str, Callable[..., Any]] = {}
