"""What kvitej knows of each node's cards, as JSON: the answer of `/devices`, which `kvitej devices` reads, too.

Memory is whole bytes. What is not known is null, never 0.
"""

from typing import Literal

from extender.wire.objects import Slim

Source = Literal["planned", "given", "stray", "leaked"]
"""Where it is known from that somebody has a device: kvitej's plan, or the kubelet.

A stray is a pod to which the kubelet gave it and that is not on the node, as the API server has told so far; once that
has lasted for too long, the device is leaked.
"""


Agent = Literal["fresh", "stale", "none", "unreadable"]


class Holder(Slim, omit_defaults=True):
    """Who has a card or a part of it.

    `whole`: all of it; `shares`: so many replicas; `instance`: a MIG instance such as 3g.40gb, from unit `start` on.
    `phase` is claimed, reserved, uncertain or bound, and empty for a pod that is not on the node. `declared` is by
    replica, None where the pod's declaration can't be read. `used` is what its processes use of the card.
    """

    namespace: str
    pod: str
    source: Source
    phase: str = ""
    whole: bool = False
    shares: int = 0
    instance: str = ""
    start: int | None = None
    declared: int | None = 0
    used: int | None = None


class FreeInstance(Slim):
    """A MIG instance such as 3g.40gb, from unit `start` on; None where that is not told."""

    instance: str
    start: int | None


class Card(Slim):
    """One card. Where no agent reports it, `index` counts from 0 and `uuid` is None.

    `used` is by all processes, `others` of it by those that nobody scheduled. `promised` is what pods declare and do
    not use yet; what may come to any of several cards counts on each of them. `used` + `promised` must not pass
    `limit`, the watermark in bytes. For cards in MIG mode, whose instances the hardware keeps apart, there is neither.
    `healthy` is None where nobody tells; `why` not is a sentence. `trouble` has occupied: others use too much for it
    to be given as a whole; and withheld: the kubelet can't give it. `links` is how it is linked to the others.
    `free` are MIG instances that exist and that the kubelet has given to nobody; None where it does not tell.
    """

    index: int
    uuid: str | None
    model: str
    mig: bool
    total: int | None
    reserved: int | None
    used: int | None
    others: int | None
    promised: int | None
    limit: int | None
    healthy: bool | None
    why: str
    trouble: list[Literal["occupied", "withheld"]]
    links: str
    holders: list[Holder]
    free: list[FreeInstance] | None


class Offer(Slim):
    """A resource that the node advertises: how many, and how many of them can't be given now."""

    resource: str
    amount: int
    taken: int


class NodeCards(Slim):
    """`agent` is fresh, stale or none; unreadable: what it wrote last can't be read, so what it said before counts.

    `age` are seconds since it last stood by its report, `when` is its time of the one that counts.

    `problems` are sentences. `watermark` is the part of the memory that may be filled. `choice`: the kubelet chooses
    the card, or a plugin hands out the planned one. `replicas` is into how many shares a card is divided, 0 for none.
    `unplaced` have devices of which it is not known on which card they are. `links` has a row for each card that is
    not in MIG mode, in their order, in the words of `nvidia-smi topo -m`; None where they are not known.
    """

    node: str
    agent: Agent
    age: float | None
    when: str
    problems: list[str]
    watermark: float
    choice: Literal["kubelet", "planned"]
    replicas: int
    offers: list[Offer]
    cards: list[Card]
    unplaced: list[Holder]
    links: list[list[str]] | None


class Devices(Slim):
    nodes: list[NodeCards]
