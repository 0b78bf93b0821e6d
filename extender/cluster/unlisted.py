"""Resources that nodes advertise and the scheduler does not ask kvitej about: pods that want them go past the veto."""

from collections.abc import Iterable

from extender.cluster.inventory import Inventory
from extender.cluster.notices import Notice, UnlistedResource


class Unlisted:
    """`managed` are the resource names of the scheduler configuration; `nodes` are by the resource that it lacks."""

    def __init__(self, managed: Iterable[str]) -> None:
        self.nodes: dict[str, set[str]] = {}
        self._managed = frozenset(managed)

    def seen(self, inventory: Inventory) -> list[Notice]:
        """The node advertises this from now on; each resource is told of once, while any node has it."""
        notices: list[Notice] = []
        unlisted = {name for name, count in inventory.allocatable if count} - self._managed
        for resource, nodes in self.nodes.items():
            if resource not in unlisted:
                nodes.discard(inventory.name)
        for resource in sorted(unlisted):
            nodes = self.nodes.setdefault(resource, set())
            if not nodes:
                notices.append(UnlistedResource(inventory.name, resource))
            nodes.add(inventory.name)
        return notices

    def gone(self, node: str) -> None:
        for nodes in self.nodes.values():
            nodes.discard(node)
