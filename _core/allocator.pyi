from typing import Final, Self, final

import numpy as np
from numpy.typing import NDArray

__pyx_capi__: Final[dict[str, object]]

@final
class Allocator:
    gpus: Final[int]
    def __new__(cls, points: NDArray[np.int32]) -> Self: ...
    def choose(self, free: int, k: int) -> int: ...
