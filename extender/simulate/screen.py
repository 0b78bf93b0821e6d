"""Shows the play: one line per step as it happens, then what each tenant has; plain text where nobody watches."""

from collections import defaultdict

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from extender.cluster.assignment import units
from extender.cluster.snapshot import Snapshot
from extender.sharetable import table_of
from extender.simulate.clusterfile import ClusterFile, numbered
from extender.simulate.player import Player
from extender.simulate.story import Step, What, asks_text
from extender.wire.shares import Shares

PIPED_WIDTH = 800
"""Columns when the output goes to a file or a pipe: enough for every step to stay on one line."""

_STYLES = {
    What.WAITS: "yellow",
    What.RELEASED: "cyan",
    What.BOUND: "green",
    What.VETOED: "bold red",
    What.REFUSED: "red",
    What.EVICTED: "bold yellow",
    What.PAST_US: "magenta",
    What.MOVED: "cyan",
    What.INTRUDES: "magenta",
    What.ILL: "red",
    What.WELL: "green",
    What.SILENT: "yellow",
    What.BACK: "green",
    What.ENDED: "dim",
}
_HEADS = ("time", "what", "tenant", "pod", "asks for", "node", "cards", "why")
_GAP = 2
_LEAST = 50
"""With fewer columns than this left for it, the why goes to a line of its own."""


class Screen:
    """Column widths come from the file, so that each line can be printed by itself and still stand in line."""

    def __init__(self, console: Console, file: ClusterFile) -> None:
        self._console = console
        rows = [_HEADS[:-1], *(("", what.value, "", "", "", "", "") for what in What)]
        for kind in file.pods:
            asks = asks_text(kind.asks, kind.gpu_memory)
            rows += [
                ("0:00:00", "", kind.tenant, name, asks, "", "") for name in numbered(kind.name, kind.count)
            ]
            if kind.intruder is not None:
                rows.append(
                    (
                        "",
                        "",
                        kind.intruder.namespace,
                        kind.intruder.name,
                        asks_text(kind.intruder.asks, ""),
                        "",
                        "",
                    )
                )
            if kind.process is not None:
                rows.append(("", "", "", kind.process.name, str(kind.process.takes), "", ""))
        rows += [("", "", "", process.name, str(process.takes), "", "") for process in file.processes]
        rows += [
            ("", "", "", "", "", name, "0-3,5-7")
            for kind in file.nodes
            for name in numbered(kind.name, kind.count)
        ]
        self._widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        self._used = sum(self._widths) + _GAP * len(self._widths)

    def head(self) -> None:
        self._line(_HEADS, "bold")

    def step(self, step: Step) -> None:
        cells = (
            _clock(step.at),
            step.what.value,
            step.tenant,
            step.pod,
            step.asks,
            step.node,
            step.cards,
            step.why,
        )
        self._line(cells, _STYLES[step.what])

    def summary(self, player: Player, book: Snapshot, shares: Shares) -> None:
        """The shares of all tenants, or without policies what each tenant has; the cards that are known; each veto."""
        self._console.print()
        self._console.print(table_of(shares) if shares.pools else self._holdings(player, book))
        self._console.print()
        if book.reports:
            self._console.print(_cards(book))
            self._console.print()
        for step in player.vetoed:
            self.say(f"1 {step.why.replace(':', f': {step.tenant}/{step.pod}:', 1)}", "bold red")

    def _holdings(self, player: Player, book: Snapshot) -> Table:
        """Per tenant: pods bound in the whole play, GPU units held now, pods still waiting."""
        held: defaultdict[str, float] = defaultdict(float)
        for seat in book.seats.values():
            held[seat.namespace] += units(seat.request, book.inventories[seat.node])
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        table.add_column("tenant")
        for head in ("pods bound", "GPU units in use", "waiting"):
            table.add_column(head, justify="right")
        waiting = [tenant for tenant, _ in player.waiting]
        for tenant in (*player.file.tenants, *sorted(held.keys() - set(player.file.tenants))):
            bound = str(player.bound[tenant]) if tenant in player.file.tenants else "past kvitej"
            table.add_row(tenant, bound, f"{held[tenant]:.2f}", str(waiting.count(tenant)))
        return table

    def say(self, sentence: str, style: str = "") -> None:
        self._console.print(Text(sentence, style))

    def _line(self, cells: tuple[str, ...], style: str) -> None:
        *columns, why = cells
        left = self._console.width - self._used
        grid = Table.grid(padding=(0, _GAP, 0, 0))
        for width in self._widths:
            grid.add_column(width=width, overflow="fold")
        if left >= _LEAST:
            grid.add_column(overflow="fold")
            columns.append(why)
        grid.add_row(*(Text(cell) for cell in columns), style=style)
        self._console.print(grid)
        if left < _LEAST:
            self._console.print(Padding(Text(why, style), (0, 0, 0, self._widths[0] + _GAP)))


def _cards(book: Snapshot) -> Table:
    """Per card that an agent reports: what is used in all, what its pods declare, and what may be used."""
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    table.add_column("node")
    table.add_column("GPU", justify="right")
    table.add_column("health")
    for head in ("used", "declared", "watermark", "of"):
        table.add_column(head, justify="right")
    for node in sorted(book.reports):
        row = book.index.get(node)
        for number, card in enumerate(book.reports[node].truth.cards):
            whole = book.table.exclusive[row, number] > 0
            table.add_row(
                node,
                str(card.index),
                "ill" if card.why else "healthy",
                _gib(card.used),
                "all" if whole else _gib(int(book.table.memory_used[row, number])),
                _gib(int(book.table.memory[row, number])),
                _gib(card.total),
            )
    return table


def _gib(amount: int) -> str:
    return f"{amount / 2**30:.1f} GiB"


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"
