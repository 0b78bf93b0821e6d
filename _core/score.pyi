import numpy as np
from numpy.typing import NDArray

from _core.columns import Ask, Table
from _core.demand import Demand

def score(
    table: Table, rows: NDArray[np.int32], codes: NDArray[np.int8], ask: Ask, demand: Demand
) -> NDArray[np.float64]: ...
def parts(
    table: Table, row: int, code: int, ask: Ask, demand: Demand
) -> tuple[float, float, float, float]: ...
def renew(
    table: Table,
    versions: NDArray[np.int64],
    seen: NDArray[np.int64],
    codes: NDArray[np.int8],
    scores: NDArray[np.float64],
    ask: Ask,
    demand: Demand,
) -> None: ...
def best(
    codes: NDArray[np.int8], scores: NDArray[np.float64], order: NDArray[np.uint32], k: int
) -> NDArray[np.int32]: ...
def grade(
    codes: NDArray[np.int8], scores: NDArray[np.float64], ranked: NDArray[np.int32]
) -> NDArray[np.int8]: ...
