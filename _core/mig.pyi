import numpy as np
from numpy.typing import NDArray

class Slices:
    profiles: int
    occupancies: int
    starts: NDArray[np.int8]
    after: NDArray[np.int32]
    scores: NDArray[np.int32]
    def __init__(
        self, starts: NDArray[np.int8], after: NDArray[np.int32], scores: NDArray[np.int32]
    ) -> None: ...
    def with_scores(self, scores: NDArray[np.int32]) -> Slices: ...

def place_dynamic(
    slices: Slices, cards: NDArray[np.int32], rows: NDArray[np.int32], profiles: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]: ...
def replay_dynamic(
    slices: Slices,
    cards: NDArray[np.int32],
    profiles: NDArray[np.int32],
    events: NDArray[np.int32],
    chosen: NDArray[np.int32],
    bits: NDArray[np.int32],
) -> None: ...
