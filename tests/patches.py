"""Applies the JSON patches that kvitej writes (RFC 6902, add and remove), as strictly as the API server does."""

import copy
from collections.abc import Iterable
from typing import Any

import msgspec


def patched(document: Any, patch: Iterable[object]) -> Any:
    """A changed copy; an operation may be a struct or plain data. KeyError or IndexError when one does not apply."""
    changed = copy.deepcopy(document)
    for operation in msgspec.to_builtins(list(patch)):
        *above, last = (
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        )
        parent = changed
        for part in above:
            parent = parent[int(part)] if isinstance(parent, list) else parent[part]
        if operation["op"] == "remove":
            del parent[last]
        elif isinstance(parent, list):
            assert last == "-"
            parent.append(operation["value"])
        else:
            parent[last] = operation["value"]
    return changed
