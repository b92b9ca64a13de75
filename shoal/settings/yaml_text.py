"""YAML 1.2, which is what people mean: ``1e-3`` is a number, and ``no``, a date and ``1:30`` are text."""

from __future__ import annotations

import functools
import re
from typing import Any

INT = re.compile(r"[-+]?[0-9][0-9_]*$|0o[0-7]+$|0x[0-9a-fA-F]+$")
FLOAT = re.compile(
    r"[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"
)
BOOL = re.compile(r"(true|True|TRUE|false|False|FALSE)$")


def read(text: str) -> Any:
    """The value that ``text`` stands for; yaml.YAMLError where it stands for none."""
    loader = _loader()(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


@functools.cache
def _loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a name that is given twice, of which YAML's own would take the last."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            names = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
            for twice in (name for name in names if names.count(name) > 1):
                raise yaml.constructor.ConstructorError(None, None, f"'{twice}' is given twice", node.start_mark)
            return dict(super().construct_mapping(node, deep))

    changed = {f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "timestamp")}
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in known if tag not in changed]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for name, pattern, first in (
        ("bool", BOOL, "tTfF"),
        ("int", INT, "-+0123456789"),
        ("float", FLOAT, "-+.0123456789"),
    ):
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{name}", pattern, list(first))
    Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: _int(str(node.value)))
    return Loader


def _int(text: str) -> int:
    digits = text.replace("_", "")
    return int(digits, {"0o": 8, "0x": 16}.get(digits[:2], 10))
