import numpy as np
from numpy.typing import NDArray

def give_back(
    rows: NDArray[np.int32],
    cards: NDArray[np.int32],
    free: NDArray[np.int32],
    lent: NDArray[np.int32],
    takes: NDArray[np.int32],
    borrowed: bool,
) -> NDArray[np.float64]: ...
