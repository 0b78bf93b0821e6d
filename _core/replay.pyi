from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from _core.columns import Ask, Table
from _core.demand import Demand

@final
class Replay:
    table: Final[Table]
    at: Final[NDArray[np.int32]]
    def __init__(
        self,
        table: Table,
        asks: list[Ask],
        *,
        memory: NDArray[np.int64],
        models: NDArray[np.uint32],
        memory_asked: NDArray[np.int64],
        models_allowed: NDArray[np.uint32],
        pods: NDArray[np.int32],
        sample: int = 0,
        graded: bool = False,
        random_ties: bool = False,
        seed: int = 0,
    ) -> None: ...
    def run(self, events: NDArray[np.int32], demand: Demand) -> None: ...
