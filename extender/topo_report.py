"""What kvitej understood of `nvidia-smi topo -m`: links, NUMA nodes, and the best sets with their bandwidth."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from extender.cluster.topology import Topology, behind_switch, topology
from extender.wire.topo import LinkClass, TopoError, parse

PIPED_WIDTH = 400
_SIZES = (2, 4, 8, 16)


def show_bytes(data: bytes, product: str) -> None:
    """Print the report on what a file holds; wide enough for every GPU where nobody watches."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise TopoError(
            f"Line {line} is not UTF-8 text; save the output of `nvidia-smi topo -m` as it is."
        ) from None
    console = Console(highlight=False)
    show(text, product, console if console.is_terminal else Console(highlight=False, width=PIPED_WIDTH))


def show(text: str, product: str, console: Console) -> None:
    """Print the report on one node's text; a product of "" is one that nobody named.

    Raises
    ------
    TopoError
        If the text cannot be understood, with the line; or if the card cannot have these links.
    """
    node = topology(parse(text), product)
    style = box.HEAVY_HEAD if console.is_terminal else None
    console.print(_summary(node))
    console.print(_links(node, style))
    if len(node.matrix.gpus) > 1:
        console.print(_best(node, style))


def _summary(node: Topology) -> str:
    matrix, card = node.matrix, node.card
    known = {numa for numa in matrix.numa if numa is not None}
    numa = f"{len(known)} NUMA node{'s' * (len(known) > 1)}" if known else "NUMA nodes not known"
    lines = [f"{len(matrix.gpus)} GPU{'s' * (len(matrix.gpus) > 1)}, {numa}."]
    if any(link.kind is LinkClass.NVLINK for row in matrix.links for link in row):
        place = "all pairs through NVSwitch" if behind_switch(matrix, card) else "pair by pair"
        lines.append(f"NVLink {place}, {card.gbps_per_link:g} GB/s a link{' at least' * node.assumed}.")
    lines.append(
        f"PCIe {card.pcie}.0{' at least' * node.assumed}; bandwidth over PCIe is an estimate by class."
    )
    if node.assumed:
        lines.append("The card is not known; --product names it, as `nvidia-smi -L` does.")
    return "\n".join([*lines, ""])


def _links(node: Topology, style: box.Box | None) -> Table:
    matrix = node.matrix
    names = [f"GPU{gpu}" for gpu in matrix.gpus]
    table = Table("", *names, "NUMA", "CPUs", box=style, title_justify="left")
    for name, row, numa, cpus in zip(
        names, matrix.links, matrix.numa, matrix.cpus or [""] * len(names), strict=True
    ):
        table.add_row(name, *map(str, row), "?" if numa is None else str(numa), cpus or "?")
    return table


def _best(node: Topology, style: box.Box | None) -> Table:
    table = Table("GPUs", "best set", box=style)
    for name in ("slowest pair GB/s", "all pairs GB/s"):
        table.add_column(name, justify="right")
    table.add_column("links")
    table.add_column("device plugin picks")
    table.add_column("slowest pair GB/s", justify="right")
    full = (1 << node.sets.gpus) - 1
    for size in _SIZES:
        if size <= node.sets.gpus:
            best, picked = node.sets.choose(full, size), node.sets.allocator.choose(full, size)
            table.add_row(
                str(size),
                _named(node, best),
                _gbps(node.sets.bottleneck[best]),
                _gbps(node.sets.total[best]),
                "NVLink" if node.sets.nvlink[best] else "PCIe",
                _named(node, picked),
                _gbps(node.sets.bottleneck[picked]),
            )
    return table


def _named(node: Topology, mask: int) -> str:
    return ",".join(map(str, node.members(mask)))


def _gbps(mbps: int) -> str:
    return f"{mbps / 1000:,.4g}" if mbps < 1_000_000 else f"{mbps / 1000:,.0f}"
