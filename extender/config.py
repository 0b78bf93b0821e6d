"""The one configuration: typed sections read from YAML, each key with its meaning, range and default.

`load` reads a file into frozen structs that every layer may hold. `render` writes the configuration in effect back as
YAML, each key under a comment made from the same annotations, so the two cannot drift apart.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from msgspec import Meta, field
from msgspec.structs import fields

from extender import yamlfile
from extender.wire import quantity
from extender.wire.marks import PROFILES
from extender.yamlfile import DURATION, Section, Spelling


def _size(number: float) -> str:
    whole = int(number)
    for power, suffix in ((3, "Gi"), (2, "Mi"), (1, "Ki")):
        if whole and whole % 1024**power == 0:
            return f"{whole // 1024**power}{suffix}"
    return str(whole)


_SIZE = {"spelling": Spelling("an amount of bytes such as 64Mi", quantity.whole, _size)}
_PROFILE = Meta(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)
_NAMESPACE = Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)


class Filter(Section, frozen=True):
    """What Filter answers."""

    keep: Annotated[int, Meta(ge=1, le=10_000, description="How many of the best nodes Filter answers.")] = (
        100
    )


class Score(Section, frozen=True):
    """What each kernel's part of a node's score is multiplied by. All parts are in GPUs; 0 switches one off."""

    fragmentation: Annotated[
        float,
        Meta(
            ge=0, le=1000, description="Room that the pods to come lose: about -1 per GPU taken, 0 at best."
        ),
    ] = 1.0
    mig: Annotated[
        float,
        Meta(
            ge=0,
            le=1000,
            description="MIG instances: what a cut costs a card in GPUs, or, where instances exist, -2 "
            "(a node that is all free) to 0 (a full one).",
        ),
    ] = 1.0
    topology: Annotated[
        float,
        Meta(
            ge=0,
            le=1000,
            description="NVLink: the part of the card type's bandwidth that the pod's GPUs lack and that "
            "the rest of the node loses, -2 to 0.",
        ),
    ] = 1.0
    shares: Annotated[
        float,
        Meta(
            ge=0,
            le=1000,
            description="Fair shares: what of the GPUs that a node could give back the pod's GPUs pin or, "
            "if it can be asked back itself, lack; -1 per GPU to 0. Without a FairnessPolicy it is 0.",
        ),
    ] = 1.0


class Claims(Section, frozen=True):
    """What Filter leaves behind in the book."""

    soft: Annotated[
        float,
        Meta(
            ge=0,
            le=600,
            extra=DURATION,
            description="How long the soft claim that Filter leaves on a node lowers its rank for others.",
        ),
    ] = 10.0


class Bind(Section, frozen=True):
    """How Bind writes to the API server."""

    timeout: Annotated[
        float,
        Meta(
            ge=0.1,
            le=4,
            extra=DURATION,
            description="How long one write to the API server may take; the scheduler waits 5s for Bind.",
        ),
    ] = 3.0
    in_flight: Annotated[
        int, Meta(ge=1, le=1000, description="How many binding writes may be under way at once; others wait.")
    ] = 64


class Preemption(Section, frozen=True):
    """Who is never a victim."""

    protected_namespaces: Annotated[
        tuple[Annotated[str, _NAMESPACE], ...],
        Meta(
            extra={"noun": "a list of namespace names"},
            description="Namespaces whose pods are never chosen as victims.",
        ),
    ] = ("kube-system",)
    protected_priority: Annotated[
        int,
        Meta(
            ge=-(2**31),
            le=2**31 - 1,
            description="Pods of this priority or above are never chosen as victims. The default is the "
            "highest value that a PriorityClass of your own may have; system-cluster-critical is 2000000000.",
        ),
    ] = 1_000_000_000


class Server(Section, frozen=True):
    """What the listener of the verbs takes."""

    max_body: Annotated[
        int,
        Meta(
            ge=64 * 1024,
            le=1024**3,
            extra=_SIZE,
            description="The longest request body that is read, in bytes.",
        ),
    ] = 64 * 1024**2
    in_flight: Annotated[
        int,
        Meta(ge=1, le=10_000, description="How many requests may be in work at once; more are turned away."),
    ] = 256


class Watch(Section, frozen=True):
    """How far the book may fall behind the API server."""

    stale_after: Annotated[
        float,
        Meta(
            ge=0.1,
            le=3600,
            extra=DURATION,
            description="How long the watch on the API server may be down before the book counts as stale "
            "and the verbs refuse.",
        ),
    ] = 30.0


class Wake(Section, frozen=True):
    """When pods that Filter refused are tried again."""

    delay: Annotated[
        float,
        Meta(
            ge=0,
            le=60,
            extra=DURATION,
            description="How long after room appears the waiting pods that Filter refused are nudged.",
        ),
    ] = 0.25


class Admission(Section, frozen=True):
    """What the webhook takes for ours."""

    schedulers: Annotated[
        tuple[Annotated[str, _PROFILE], ...],
        Meta(
            extra={"noun": "a list of scheduler names"},
            description="Scheduler profiles that ask kvitej about GPU pods; fair-quota is what adopted pods get.",
        ),
    ] = PROFILES
    writers: Annotated[
        tuple[str, ...],
        Meta(
            extra={"noun": "a list of API users"},
            description="API users as which kvitej writes: only they lift its gate and change its annotations.",
        ),
    ] = ("system:serviceaccount:kvitej:kvitej", "kvitej")


class Cards(Section, frozen=True):
    """What the nodes' agents report of their cards, and how far it lets cards be filled."""

    watermark: Annotated[
        float,
        Meta(
            gt=0,
            le=100,
            description="Percent of a card's memory, of what the driver leaves, that may be in use or promised; a "
            "FairnessPolicy may say otherwise for its pool.",
        ),
    ] = 85.0
    foreign: Annotated[
        int,
        Meta(
            ge=0,
            le=2**42,
            extra=_SIZE,
            description="Bytes of a card that processes which nobody scheduled may use; a card of which they use "
            "more is given to nobody as a whole.",
        ),
    ] = 1024**3
    stale_after: Annotated[
        float,
        Meta(
            ge=1,
            le=86_400,
            extra=DURATION,
            description="How long an agent may be silent before its report counts as stale.",
        ),
    ] = 90.0
    stale: Annotated[
        Literal["labels", "closed"],
        Meta(
            description="What becomes of a node with a stale report: it counts by its labels and by what the last "
            "report said against it, or it is closed."
        ),
    ] = "labels"


class Agent(Section, frozen=True):
    """How `kvitej agent` watches a node."""

    sample: Annotated[
        float,
        Meta(ge=1, le=600, extra=DURATION, description="How often the agent looks at the cards."),
    ] = 5.0
    heartbeat: Annotated[
        float,
        Meta(
            ge=1,
            le=600,
            extra=DURATION,
            description="How often the agent renews its Lease, which lasts for three times as long.",
        ),
    ] = 30.0
    kubelet_socket: Annotated[
        str, Meta(min_length=1, max_length=107, description="Where the kubelet tells who holds which device.")
    ] = "/var/lib/kubelet/pod-resources/kubelet.sock"
    kubelet_grace: Annotated[
        float,
        Meta(
            ge=0,
            le=600,
            extra=DURATION,
            description="How long devices count as they were while the kubelet does not answer.",
        ),
    ] = 30.0


class Log(Section, frozen=True):
    """What is logged, and how."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(
            description="The least important lines that are logged; at info there is one line per decision."
        ),
    ] = "info"
    format: Annotated[
        Literal["text", "json"], Meta(description="One line of text per event, or one JSON object per line.")
    ] = "text"


class Config(Section, frozen=True):
    """The whole configuration; durations are seconds and sizes bytes once read."""

    filter: Filter = field(default_factory=Filter)
    score: Score = field(default_factory=Score)
    claims: Claims = field(default_factory=Claims)
    bind: Bind = field(default_factory=Bind)
    preemption: Preemption = field(default_factory=Preemption)
    server: Server = field(default_factory=Server)
    watch: Watch = field(default_factory=Watch)
    wake: Wake = field(default_factory=Wake)
    admission: Admission = field(default_factory=Admission)
    cards: Cards = field(default_factory=Cards)
    agent: Agent = field(default_factory=Agent)
    log: Log = field(default_factory=Log)


def load(path: Path | None) -> Config:
    """Read the configuration from a YAML file; no path, or an empty file, gives the defaults.

    Raises
    ------
    FileError
        With the file and, where there is one, the key's path, the value found and what is allowed.
    OSError
        The file cannot be read.
    """
    return Config() if path is None else yamlfile.load(path, Config, _WHAT)


def from_mapping(found: object) -> Config:
    """Return the configuration that a mapping as parsed from YAML describes; errors are those of `load`."""
    return yamlfile.read(Config, found, _WHAT)


def render(config: Config) -> str:
    """Return the configuration as YAML that `load` reads back, with a comment on every key."""
    lines = ["# Every key may be left out and then has its default.", ""]
    for section in fields(Config):
        values: Section = getattr(config, section.name)
        lines.append(f"# {type(values).__doc__}")
        lines.append(f"{section.encode_name}:")
        for key in fields(type(values)):
            _, meta = yamlfile.unwrap(key.type)
            comment = f"{meta.description} Allowed: {yamlfile.allowed(key.type)}."
            lines += textwrap.wrap(comment, 100, initial_indent="  # ", subsequent_indent="  # ")
            spelling, value = yamlfile.spelling_of(meta), getattr(values, key.name)
            lines.append(f"  {key.encode_name}: {_yaml(spelling.write(value) if spelling else value)}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


_WHAT = "the configuration"


def _yaml(value: Any) -> str:
    sequence = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(sequence, default_flow_style=True, width=sys.maxsize).removesuffix("...\n").strip()
