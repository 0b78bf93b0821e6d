"""What the nodes' agents tell: what the cards of a node really are, and until when that was certainly so.

A report changes only when something has changed that decides; that the agent still stands by it is told by its
beats. So how old a report is, is the time since the newest of the node's beats. Times are seconds of one monotonic
clock.
"""

from dataclasses import dataclass

from extender.wire.gpunode import GPUNodeSpec, GPUNodeStatus


@dataclass(frozen=True, slots=True)
class ReportSeen:
    """The node's report says this from now on.

    `status` is None where nothing is known of the cards: the agent has not written it yet, or `fault` says why the
    report can't be read.
    """

    node: str
    spec: GPUNodeSpec
    status: GPUNodeStatus | None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class ReportGone:
    """There is no report on the node any more."""

    node: str


@dataclass(frozen=True, slots=True)
class Beat:
    """The node's agent stood by its report at `at`."""

    node: str
    at: float


AgentEvent = ReportSeen | ReportGone | Beat
