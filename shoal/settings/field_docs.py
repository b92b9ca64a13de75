"""The meaning of each field of a dataclass: the docstring underneath it."""

from __future__ import annotations

import dataclasses
from typing import Any


def field_docs(Config: Any) -> dict[str, str]:
    """Return the docstring under each field of a dataclass, over all base classes."""
    import docstring_parser

    docs = {
        parameter.arg_name: parameter.description or ""
        for cls in reversed(Config.__mro__)
        if dataclasses.is_dataclass(cls)
        for parameter in docstring_parser.parse_from_object(cls).params
    }
    return {name: " ".join(doc.split()) for name, doc in docs.items()}
