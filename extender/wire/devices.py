"""The annotation `kvitej.io/devices`: what a Binding recorded, so that the book can be rebuilt from the API server.

Compact JSON, for example `{"units":2.0,"containers":{"main":{"gpu":[0,1]}}}`. Card numbers are a forecast: the kubelet
and its device plugin choose the physical card.
"""

from typing import Annotated

import msgspec

ANNOTATION = "kvitej.io/devices"


class ContainerDevices(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, forbid_unknown_fields=True):
    """`gpu`: whole cards; `shared`: one card per replica; `mig`: instances by resource name.

    `cut`: of instances that are cut on demand, the card and start of each, by resource name.
    """

    gpu: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()
    mig: dict[str, int] = {}
    cut: dict[str, tuple[tuple[int, int], ...]] = {}


class Devices(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, forbid_unknown_fields=True):
    """`units`: GPU units charged for the pod as a whole.

    `memory`: bytes that each replica declared, 0 for none; left out where it charges nothing.
    """

    units: float
    containers: dict[str, ContainerDevices]
    memory: Annotated[int, msgspec.Meta(ge=0, le=2**50)] | None = None


_decoder = msgspec.json.Decoder(Devices)


def encode(devices: Devices) -> str:
    return msgspec.json.encode(devices).decode()


def decode(text: str) -> Devices | None:
    """None when the text is not such a record."""
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None
