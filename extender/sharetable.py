"""Shows what `/shares` answers: one table per pool for people, or JSON or YAML for programs."""

import json
import time
from collections.abc import Container

import msgspec
import yaml
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from extender import asking
from extender.wire.shares import PoolShares, Shares, TenantShares

WATCH_SECONDS = 2.0
PIPED_WIDTH = 200
"""Columns when the output goes to a file or a pipe: enough for all of the table."""
_COLUMNS = (
    ("tenant", "left"),
    *((name, "right") for name in ("min", "max", "weight", "entitled", "in use", "borrowed", "decayed")),
    *((name, "right") for name in ("drift", "score", "waiting", "longest wait", "evicted")),
)

_LEFT_OUT = ("min", "max", "weight", "decayed", "drift")
"""In a narrow terminal: what the policy says itself, or what follows from the rest."""


def show(http: tuple[str, int], tenant: str | None, output: str, watch: bool) -> None:
    """Ask a running `kvitej serve` and print what it answers; with `watch` again and again. Raises AskingError."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    if output == "table" and watch and console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(table_of(_read(http, tenant)), refresh=True)
                time.sleep(WATCH_SECONDS)
    while True:
        if output == "table":
            console.print(table_of(_read(http, tenant)))
        else:
            print(document(asking.shares(http, tenant), output), end="", flush=True)
        if not watch:
            return
        time.sleep(WATCH_SECONDS)


def _read(http: tuple[str, int], tenant: str | None) -> Shares:
    try:
        return msgspec.json.decode(asking.shares(http, tenant), type=Shares)
    except msgspec.DecodeError as error:
        raise asking.AskingError(
            f"What answers at {http[0]}:{http[1]} is no `kvitej serve`: {error}."
        ) from None


def document(answer: str, output: str) -> str:
    """The answer as it is in JSON, or as a document of YAML."""
    if output == "json":
        return answer.rstrip("\n") + "\n"
    return yaml.safe_dump(json.loads(answer), sort_keys=False, explicit_start=True)


def table_of(shares: Shares) -> RenderableType:
    """For people; amounts are GPUs."""
    if not shares.pools:
        return Text(
            "No FairnessPolicy applies: nobody is promised anything, and GPU pods are not put in line."
        )
    parts: list[RenderableType] = []
    for pool in shares.pools:
        parts.append(_Pool(pool))
        parts += [
            Text(f"{each.type}: {each.message}", style="yellow") for each in pool.conditions if each.message
        ]
    if shares.outside:
        parts.append(Text(f"{_pods(shares.outside)} under no policy."))
    return Group(*parts)


class _Pool:
    """One pool's table; where a terminal is too narrow for all columns, those that say least are left out."""

    def __init__(self, pool: PoolShares) -> None:
        self._pool = pool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        pool = self._pool
        used = f"{amount(pool.in_use)} of {amount(pool.capacity)} GPUs in use"
        yield Text(f"{pool.policy}: {used}, {_pods(pool.waiting)}", "italic")
        table = self._table(())
        if console.measure(table, options=options.update(max_width=PIPED_WIDTH)).maximum > options.max_width:
            table = self._table(_LEFT_OUT)
        yield table

    def _table(self, left_out: Container[str]) -> Table:
        table = Table(box=None, pad_edge=False)
        for name, justify in _COLUMNS:
            if name not in left_out:
                table.add_column(name, justify="right" if justify == "right" else "left", no_wrap=True)
        for row in self._pool.tenants:
            shown = [
                cell for (name, _), cell in zip(_COLUMNS, cells(row), strict=True) if name not in left_out
            ]
            table.add_row(*shown, style="yellow" if row.score is not None and row.score < 1 else None)
        return table


def cells(row: TenantShares) -> list[str]:
    """One per column."""
    unnamed = not row.name
    return [
        row.name or "(no tenant)",
        "-" if unnamed else amount(row.min),
        amount(row.max),
        "-" if unnamed else f"{row.weight:g}",
        str(row.whole),
        amount(row.in_use),
        amount(row.borrowed),
        "-" if unnamed else amount(row.decayed_use),
        "-" if row.drift is None else f"{100 * row.drift:+.0f} %",
        "-" if row.score is None else f"{row.score:.2f}",
        str(row.waiting),
        wait(row.longest_wait) if row.waiting else "-",
        str(row.evictions),
    ]


def amount(gpus: float) -> str:
    """To a tenth, without it for whole numbers."""
    return f"{round(gpus, 1):.10g}"


def wait(seconds: float) -> str:
    """The two largest units: 45 s, 3 m 20 s, 2 h 5 m, 1 d 3 h."""
    whole = int(seconds)
    for unit, size, smaller, part in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {smaller}"
    return f"{whole} s"


def _pods(many: int) -> str:
    return "1 pod waits" if many == 1 else f"{many} pods wait"
