"""How far cards may be filled, and how long a node's report holds without a word from its agent."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """`watermark` is the part of a card's memory that may be in use, of what the driver leaves.

    A whole card goes to nobody while others use more than `floor` bytes of it. Where the agent has been silent for
    `stale_after` seconds, its last report holds on, or the node takes nothing if `close_stale`.
    """

    watermark: float = 1.0
    floor: int = 1 << 30
    stale_after: float = math.inf
    close_stale: bool = False


UNLIMITED = Limits()
