from collections.abc import Iterable
from typing import Final, Self, final

import numpy as np
from numpy.typing import NDArray

from _core.mig import Slices
from _core.topology import Sets

@final
class Hardware:
    kinds: Final[int]
    models: Final[int]
    topologies: Final[int]
    slices: Final[tuple[Slices, ...]]
    links: Final[tuple[Sets, ...]]
    profiles: Final[NDArray[np.int32]]
    units: Final[NDArray[np.int32]]
    parts: Final[NDArray[np.int32]]
    offers: Final[NDArray[np.int32]]
    def __new__(
        cls,
        *,
        slices: Iterable[Slices],
        profiles: NDArray[np.int32],
        units: NDArray[np.int32],
        links: Iterable[Sets],
        offers: NDArray[np.int32],
        parts: NDArray[np.int32],
    ) -> Self: ...
    @staticmethod
    def none(kinds: int) -> Hardware: ...
