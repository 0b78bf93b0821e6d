"""The kinds of nodes that the book has seen, as the kernels look them up: `Kinds` → `_core.Hardware`.

A kind keeps its index for good, since rows hold it. The tables of cards that are cut on demand follow the MIG
instances that pods ask for; their share of the demand halves every `HALF_LIFE` pods that ask for some.
"""

from collections.abc import Mapping

import numpy as np

from _core import Hardware
from extender.cluster.geometry import profile_of, unit_share
from extender.cluster.mig import Geometry
from extender.cluster.migscore import DemandMix, MigTables
from extender.cluster.topology import MOST_GPUS, Topologies
from extender.wire.topo import LinkMatrix

HALF_LIFE = 2_000.0
UNKNOWN = -1


class Kinds:
    """GPU models that are cut on demand and link topologies, by index."""

    def __init__(self) -> None:
        self._geometries: dict[Geometry, int] = {}
        self.topologies = Topologies()
        self._tables = MigTables(DemandMix(HALF_LIFE))
        self._came = 0.0

    @property
    def cut_on_demand(self) -> bool:
        """Whether there are cards whose tables follow the demand."""
        return bool(self._geometries)

    def geometry(self, geometry: Geometry | None) -> int:
        """Index of the model; -1 where nothing is cut on demand."""
        return UNKNOWN if geometry is None else self._geometries.setdefault(geometry, len(self._geometries))

    def topology(self, links: LinkMatrix | None, product: str) -> int:
        """Index of the topology; -1 where links are not known. Raises TopoError where they can't be."""
        return UNKNOWN if links is None else self.topologies.add(links, product)

    def observe(self, devices: tuple[tuple[str, int], ...]) -> None:
        """A pod came that asks for these."""
        for name, count in devices:
            if unit_share(name, None) is not None:
                self._came += 1
                self._tables.observe(name, self._came, count)

    def hardware(self, ids: Mapping[str, int], kinds: int) -> Hardware:
        """All kinds as of now, for the book's `kinds` resources, of which `ids` have a name."""
        profiles = np.full((len(self._geometries), kinds), -1, np.int32)
        parts = np.zeros(kinds, np.int32)
        for name, kind in ids.items():
            share = unit_share(name, None)
            parts[kind] = max(1, round(1000 * share)) if share is not None else 0
            for geometry, index in self._geometries.items():
                found = profile_of(geometry, name) if parts[kind] else None
                profiles[index, kind] = -1 if found is None else found
        offers = [self.topologies.offers(k) for k in range(MOST_GPUS + 1)]
        return Hardware(
            slices=[self._tables.of(geometry, self._came) for geometry in self._geometries],
            profiles=profiles,
            units=np.array([geometry.units for geometry in self._geometries], np.int32),
            links=self.topologies.sets,
            offers=np.ascontiguousarray(np.array(offers, np.int32).T),
            parts=parts,
        )
