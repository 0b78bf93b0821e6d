from typing import Final

import numpy as np
from numpy.typing import NDArray

from _core.columns import Ask, Table
from _core.demand import Demand

FITS: Final = 0
CONTENDED: Final = 1
UNKNOWN: Final = 2
CLOSED: Final = 3
LACKING: Final = 4
TAKEN: Final = 5
MEMORY_UNKNOWN: Final = 6
MEMORY_TOO_SMALL: Final = 7
MEMORY_TAKEN: Final = 8
LINKS_UNKNOWN: Final = 9
LINKS_TOO_SLOW: Final = 10
LINKS_TAKEN: Final = 11
STALE: Final = 12
UNHEALTHY: Final = 13
OCCUPIED: Final = 14
WATERMARK: Final = 15

def fit(table: Table, rows: NDArray[np.int32], ask: Ask) -> NDArray[np.int8]: ...
def seat(
    table: Table, row: int, ask: Ask, demand: Demand, soft: bool = False
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]: ...
