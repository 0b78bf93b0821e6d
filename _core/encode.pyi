import numpy as np
from numpy.typing import NDArray

from _core.names import NameIndex

def names_json(index: NameIndex, rows: NDArray[np.int32]) -> bytes: ...
def failures_json(
    index: NameIndex,
    rows: NDArray[np.int32],
    codes: NDArray[np.int8],
    fragments: list[bytes],
    wanted: int,
) -> bytes: ...
def priorities_json(index: NameIndex, rows: NDArray[np.int32], grades: NDArray[np.int8]) -> bytes: ...
