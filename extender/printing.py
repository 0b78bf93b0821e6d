"""Prints what a running `kvitej serve` answers: as tables for people, or as JSON or YAML for programs."""

import json
import time
from collections.abc import Callable

import msgspec
import yaml
from rich.console import Console, RenderableType
from rich.live import Live

from extender.asking import AskingError

WATCH_SECONDS = 2.0
PIPED_WIDTH = 200
"""Columns when the output goes to a file or a pipe: enough for all of a table."""


def show(
    http: tuple[str, int],
    ask: Callable[[], str],
    tables: Callable[[str], RenderableType],
    output: str,
    watch: bool,
) -> None:
    """Print what `ask` gets from `http`; with `watch` again and again.

    Raises AskingError, also where `tables` raises msgspec.DecodeError: the answer is not what it should be.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH, highlight=False)

    def read() -> RenderableType:
        try:
            return tables(ask())
        except msgspec.DecodeError as error:
            raise AskingError(f"What answers at {http[0]}:{http[1]} is no `kvitej serve`: {error}.") from None

    if output == "table" and watch and console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(read(), refresh=True)
                time.sleep(WATCH_SECONDS)
    while True:
        if output == "table":
            console.print(read())
        else:
            print(document(ask(), output), end="", flush=True)
        if not watch:
            return
        time.sleep(WATCH_SECONDS)


def document(answer: str, output: str) -> str:
    """The answer as it is in JSON, or as a document of YAML."""
    if output == "json":
        return answer.rstrip("\n") + "\n"
    return yaml.safe_dump(json.loads(answer), sort_keys=False, explicit_start=True)
