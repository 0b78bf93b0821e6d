import numpy as np
from numpy.typing import NDArray

from _core.columns import Ask, Table

def score_static(
    table: Table, rows: NDArray[np.int32], codes: NDArray[np.int8], ask: Ask
) -> NDArray[np.int64]: ...
