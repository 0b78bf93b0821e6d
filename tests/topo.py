"""The captures of `nvidia-smi topo -m` under tests/data/topo, and what their index says of them."""

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
INDEX: list[dict[str, Any]] = json.loads((DATA / "topo" / "index.json").read_text())["files"]
BROKEN = [entry for entry in INDEX if entry["expect"].get("should_fail_strict")]
READABLE = [entry for entry in INDEX if entry not in BROKEN]


def text_of(entry: dict[str, Any]) -> str:
    return (DATA / str(entry["file"])).read_text()


def capture(name: str) -> str:
    """The text of a capture by its file name without the ending."""
    return text_of(next(entry for entry in INDEX if Path(entry["file"]).stem == name))
