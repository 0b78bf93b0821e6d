from typing import Final, Self, final

import numpy as np
from numpy.typing import NDArray

from _core.hardware import Hardware

__pyx_capi__: Final[dict[str, object]]

IS_UNFIT: Final = 1
IS_OCCUPIED: Final = 2
IS_WITHHELD: Final = 4

@final
class Table:
    rows: Final[int]
    state: Final[NDArray[np.int8]]
    mode: Final[NDArray[np.int8]]
    cards: Final[NDArray[np.int32]]
    replicas: Final[NDArray[np.int32]]
    opaque: Final[NDArray[np.int32]]
    order: Final[NDArray[np.uint32]]
    soft: Final[NDArray[np.int32]]
    cpu: Final[NDArray[np.int64]]
    cpu_used: Final[NDArray[np.int64]]
    allocatable: Final[NDArray[np.int64]]
    used: Final[NDArray[np.int64]]
    used_soft: Final[NDArray[np.int64]]
    memory: Final[NDArray[np.int64]]
    memory_used: Final[NDArray[np.int64]]
    memory_soft: Final[NDArray[np.int64]]
    shares: Final[NDArray[np.int32]]
    shares_soft: Final[NDArray[np.int32]]
    exclusive: Final[NDArray[np.int32]]
    exclusive_soft: Final[NDArray[np.int32]]
    part: Final[NDArray[np.int32]]
    geometry: Final[NDArray[np.int32]]
    misplaced: Final[NDArray[np.int32]]
    topology: Final[NDArray[np.int32]]
    lent: Final[NDArray[np.int32]]
    slices: Final[NDArray[np.int32]]
    slices_soft: Final[NDArray[np.int32]]
    choice: Final[NDArray[np.int8]]
    measured: Final[NDArray[np.int8]]
    loose_memory: Final[NDArray[np.int64]]
    extra: Final[NDArray[np.int64]]
    given: Final[NDArray[np.int32]]
    given_memory: Final[NDArray[np.int64]]
    trouble: Final[NDArray[np.int8]]
    hardware: Final[Hardware]
    def __new__(
        cls,
        *,
        state: NDArray[np.int8],
        mode: NDArray[np.int8],
        cards: NDArray[np.int32],
        replicas: NDArray[np.int32],
        opaque: NDArray[np.int32],
        order: NDArray[np.uint32],
        soft: NDArray[np.int32],
        cpu: NDArray[np.int64],
        cpu_used: NDArray[np.int64],
        allocatable: NDArray[np.int64],
        used: NDArray[np.int64],
        used_soft: NDArray[np.int64],
        memory: NDArray[np.int64],
        memory_used: NDArray[np.int64],
        memory_soft: NDArray[np.int64],
        shares: NDArray[np.int32],
        shares_soft: NDArray[np.int32],
        exclusive: NDArray[np.int32],
        exclusive_soft: NDArray[np.int32],
        part: NDArray[np.int32],
        geometry: NDArray[np.int32],
        misplaced: NDArray[np.int32],
        topology: NDArray[np.int32],
        lent: NDArray[np.int32],
        slices: NDArray[np.int32],
        slices_soft: NDArray[np.int32],
        choice: NDArray[np.int8],
        measured: NDArray[np.int8],
        loose_memory: NDArray[np.int64],
        extra: NDArray[np.int64],
        given: NDArray[np.int32],
        given_memory: NDArray[np.int64],
        trouble: NDArray[np.int8],
        hardware: Hardware | None = None,
    ) -> Self: ...
    def copy_row(self, row: int) -> Table: ...

@final
class Ask:
    resources: Final[NDArray[np.int32]]
    counts: Final[NDArray[np.int64]]
    whole: Final[int]
    shares: Final[int]
    memory: Final[int]
    cpu: Final[int]
    gpu_id: Final[int]
    shared_id: Final[int]
    bandwidth: Final[int]
    nvlink: Final[bool]
    borrowed: Final[bool | None]
    def __new__(
        cls,
        resources: NDArray[np.int32],
        counts: NDArray[np.int64],
        whole: int,
        shares: int,
        memory: int,
        cpu: int = 0,
        gpu_id: int = -1,
        shared_id: int = -1,
        bandwidth: int = 0,
        nvlink: bool = False,
        borrowed: bool | None = None,
    ) -> Self: ...
