"""What a row says of its node while nobody is on it: what the node itself and its report tell.

`measure` adds who uses how much, and `seats.charge` who sits there.
"""

import zlib

from extender.cluster.columns import Columns
from extender.cluster.inventory import Inventory, Mode
from extender.cluster.measure import is_measured
from extender.cluster.outlook import Outlook
from extender.cluster.reported import Report
from extender.cluster.request import GPU, MOST_DEVICES, SHARED
from extender.cluster.seats import cut_out


def describe(
    columns: Columns,
    row: int,
    inventory: Inventory,
    report: Report | None,
    outlook: Outlook,
    budgets: list[int],
) -> None:
    """Write the empty row of a node but for its `state`; `budgets` are of each card."""
    columns.version[row] += 1
    columns.mode[row] = inventory.mode
    columns.cards[row] = inventory.cards
    columns.replicas[row] = inventory.replicas
    columns.order[row] = zlib.crc32(inventory.name.encode())
    columns.memory[row, : inventory.cards] = budgets
    if inventory.mode is Mode.INSTANCE:
        # Where one `nvidia.com/gpu` is an instance, the label is of its memory, all of which is the pod's.
        columns.memory[row, 0] = inventory.card_memory
    columns.cpu[row] = inventory.cpu
    columns.ram[row] = inventory.memory
    columns.part[row] = inventory.part
    columns.geometry[row], columns.topology[row], _ = outlook.kind_of(inventory)
    columns.slices[row, : inventory.sliced] = 0
    for resource, count in inventory.allocatable:
        columns.allocatable[row, outlook.ids[resource]] = count
    if report is not None:
        _limit(columns, row, inventory, report, outlook)


def _limit(columns: Columns, row: int, inventory: Inventory, report: Report, outlook: Outlook) -> None:
    """Take away what the kubelet offers and cannot give, and say whether memory is measured."""
    measured = is_measured(inventory, report.truth)
    columns.measured[row] = measured
    columns.choice[row] = not inventory.planned and (measured or report.truth.given is not None)
    advertised = {name for name, _ in inventory.allocatable}
    for resource in report.truth.blocked & advertised:
        columns.used[row, outlook.ids[resource]] += MOST_DEVICES
    for cards in report.leaked.values():
        for resource, count in ((GPU, len(cards.whole)), (SHARED, len(cards.shared))):
            if resource == SHARED and inventory.mode is Mode.REPLICA:
                resource = GPU
            if resource in advertised:
                columns.used[row, outlook.ids[resource]] += count
        for place in cards.slices:
            if place.resource in advertised:
                columns.used[row, outlook.ids[place.resource]] += 1
            for card, bits in cut_out([place], inventory):
                columns.slices[row, card] |= bits


def budgets(inventory: Inventory, card_memory: int, report: Report | None, watermark: float) -> list[int]:
    """Bytes of each card that may be in use by all; `card_memory` is what the node says of it without a report."""
    found = [int(watermark * card_memory)] * inventory.cards
    for number, card in enumerate(report.truth.cards[: inventory.cards] if report is not None else ()):
        if card.total:
            found[number] = card.budget(watermark)
    return found
