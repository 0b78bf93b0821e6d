"""Shows what `/shares` answers: one table per pool."""

from collections.abc import Container

import msgspec
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from extender.printing import PIPED_WIDTH
from extender.wire.shares import PoolShares, Shares, TenantShares

NOT_PREVENTED = (
    "Not prevented: a pod without GPUs, of higher priority, may preempt GPU pods without asking kvitej."
)
_COLUMNS = (
    ("tenant", "left"),
    *((name, "right") for name in ("min", "max", "weight", "entitled", "in use", "borrowed", "decayed")),
    *((name, "right") for name in ("drift", "score", "waiting", "longest wait", "evicted")),
)

_LEFT_OUT = ("min", "max", "weight", "decayed", "drift")
"""In a narrow terminal: what the policy says itself, or what follows from the rest."""


def tables(answer: str) -> RenderableType:
    """The answer of `/shares` for people. Raises msgspec.DecodeError."""
    return table_of(msgspec.json.decode(answer, type=Shares))


def table_of(shares: Shares) -> RenderableType:
    """For people; amounts are GPUs."""
    if not shares.pools:
        return Text(
            "No FairnessPolicy applies: nobody is promised anything; GPU pods take turns by priority, then age."
        )
    parts: list[RenderableType] = []
    for pool in shares.pools:
        parts.append(_Pool(pool))
        parts += [
            Text(f"{each.type}: {each.message}", style="yellow") for each in pool.conditions if each.message
        ]
    if shares.outside:
        parts.append(Text(f"{_pods(shares.outside)} under no policy."))
    parts.append(Text(NOT_PREVENTED, "dim"))
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
