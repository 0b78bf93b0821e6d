"""The native core: arrays in, arrays or bytes out. Only what this page exports may be used.

A request's node names become rows (`names`), the rows are judged and seated (`fit`, where the kubelet picks the card
for whichever it could give: `kubelet`), weighed for the pods to come
(`demand`, `fragmentation`), for MIG instances (`instances`), for NVLink (`linked`) and for what can be given back
(`shares`) and ranked (`score`) over the book's columns (`columns`), and the answer is copied together from prebuilt
bytes (`encode`); `replay` does it for thousands of pods. Kinds of nodes share their tables (`hardware`): where on a
card an instance goes (`mig`), which GPUs belong together (`topology`), what the stock device plugin would hand out
(`allocator`). Exported functions check types, shapes and row ranges once and answer bad input with a ValueError (or a
TypeError for what is not the named class or a number at all); inside, nothing allocates and nothing is checked.
"""

from _core.allocator import Allocator
from _core.columns import IS_OCCUPIED, IS_UNFIT, IS_WITHHELD, Ask, Table
from _core.demand import BEST_FIT, D1, FGD, FIRST_FIT, P1, Demand
from _core.encode import failures_json, names_json, priorities_json
from _core.fit import (
    CLOSED,
    CONTENDED,
    FITS,
    LACKING,
    LINKS_TAKEN,
    LINKS_TOO_SLOW,
    LINKS_UNKNOWN,
    MEMORY_TAKEN,
    MEMORY_TOO_SMALL,
    MEMORY_UNKNOWN,
    OCCUPIED,
    STALE,
    TAKEN,
    UNHEALTHY,
    UNKNOWN,
    WATERMARK,
    fit,
    seat,
)
from _core.fragmentation import slots
from _core.hardware import Hardware
from _core.instances import score_static
from _core.mig import Slices, place_dynamic, replay_dynamic
from _core.names import NameIndex
from _core.replay import Replay
from _core.score import best, grade, parts, renew, score
from _core.shares import give_back
from _core.topology import Sets, connect

ABI = 6
"""Raised with every change of what stands below, so that a stale build is named instead of misread."""

__all__ = [
    "ABI",
    "BEST_FIT",
    "CLOSED",
    "CONTENDED",
    "D1",
    "FGD",
    "FIRST_FIT",
    "FITS",
    "IS_OCCUPIED",
    "IS_UNFIT",
    "IS_WITHHELD",
    "LACKING",
    "LINKS_TAKEN",
    "LINKS_TOO_SLOW",
    "LINKS_UNKNOWN",
    "MEMORY_TAKEN",
    "MEMORY_TOO_SMALL",
    "MEMORY_UNKNOWN",
    "OCCUPIED",
    "P1",
    "STALE",
    "TAKEN",
    "UNHEALTHY",
    "UNKNOWN",
    "WATERMARK",
    "Allocator",
    "Ask",
    "Demand",
    "Hardware",
    "NameIndex",
    "Replay",
    "Sets",
    "Slices",
    "Table",
    "best",
    "connect",
    "failures_json",
    "fit",
    "give_back",
    "grade",
    "names_json",
    "parts",
    "place_dynamic",
    "priorities_json",
    "renew",
    "replay_dynamic",
    "score",
    "score_static",
    "seat",
    "slots",
]
