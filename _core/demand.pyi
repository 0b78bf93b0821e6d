from typing import Final, Self, final

import numpy as np
from numpy.typing import NDArray

__pyx_capi__: Final[dict[str, object]]

D1: Final = 0
P1: Final = 1
FGD: Final = 2
BEST_FIT: Final = 3
FIRST_FIT: Final = 4

@final
class Demand:
    kind: Final[int]
    classes: Final[int]
    cores: Final[float]
    cpu: Final[NDArray[np.int64]]
    gpus: Final[NDArray[np.int32]]
    share: Final[NDArray[np.float64]]
    often: Final[NDArray[np.float64]]
    weight: Final[NDArray[np.float64]]
    fragmentation: Final[float]
    mig: Final[float]
    topology: Final[float]
    shares: Final[float]
    def __new__(
        cls,
        kind: int,
        cores: float,
        cpu: NDArray[np.int64],
        gpus: NDArray[np.int32],
        share: NDArray[np.float64],
        often: NDArray[np.float64],
        weight: NDArray[np.float64],
        *,
        fragmentation: float = 1.0,
        mig: float = 1.0,
        topology: float = 1.0,
        shares: float = 1.0,
    ) -> Self: ...
