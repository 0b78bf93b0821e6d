"""Applies the JSON patches that kvitej writes (RFC 6902, add and remove), as strictly as the API server does."""

from collections.abc import Iterable
from typing import Any

import msgspec


def patched(document: Any, patch: Iterable[object]) -> Any:
    """A changed copy; an operation may be a struct or plain data. KeyError or IndexError when one does not apply."""
    for operation in msgspec.to_builtins(list(patch)):
        path = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        document = _applied(document, path, operation)
    return document


def _applied(parent: Any, path: list[str], operation: dict[str, Any]) -> Any:
    changed = parent.copy()
    key, *rest = path
    if rest:
        place: Any = int(key) if isinstance(parent, list) else key
        changed[place] = _applied(parent[place], rest, operation)
    elif operation["op"] == "remove":
        del changed[key]
    elif isinstance(changed, list):
        assert key == "-"
        changed.append(operation["value"])
    else:
        changed[key] = operation["value"]
    return changed
