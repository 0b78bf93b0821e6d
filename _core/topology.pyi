from typing import Final, Self, final

import numpy as np
from numpy.typing import NDArray

from _core.allocator import Allocator

__pyx_capi__: Final[dict[str, object]]

@final
class Sets:
    gpus: Final[int]
    bottleneck: Final[NDArray[np.int32]]
    total: Final[NDArray[np.int32]]
    allocator: Final[Allocator]
    kept: Final[NDArray[np.float64]]
    nvlink: Final[NDArray[np.bool_]]
    def __new__(
        cls,
        bandwidth: NDArray[np.int32],
        rank: NDArray[np.int32],
        allocator: Allocator,
        nvlink: NDArray[np.bool_] | None = None,
    ) -> Self: ...
    def choose(self, free: int, k: int) -> int: ...

def connect(
    sets: list[Sets],
    at: NDArray[np.int32],
    free: NDArray[np.uint32],
    k: int,
    best: NDArray[np.int32],
    plugin: bool = False,
) -> tuple[NDArray[np.uint32], NDArray[np.float64], NDArray[np.int32]]: ...
