import numpy as np
from numpy.typing import NDArray

from _core.columns import Table
from _core.demand import Demand

def slots(table: Table, demand: Demand) -> NDArray[np.float64]: ...
