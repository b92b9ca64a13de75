"""Names for what holds values of any kind, so that a signature says which."""

from __future__ import annotations

from typing import Any

Values = dict[str, Any]
"""Names to values: settings, options, what is written as a JSON object."""
State = dict[str, Any]
"""What ``Stateful`` says of a state: names to arrays, tensors, numbers, text, and dictionaries of them."""
