"""`kvitej agent --once`: one report on this node, as text."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import yaml

from extender.agent.sample import NO_GPU
from extender.agent.sampler import Sampler

NO_GPU_HERE = 3
NOT_TOLD = 4


class Once(NamedTuple):
    """What to print, the sentence for people (or ""), and the exit status.

    The status is `NO_GPU_HERE` where there is nothing to report, `NOT_TOLD` where there may be but the driver does
    not tell.
    """

    text: str
    sentence: str
    status: int


def once(node: str, output: str) -> Once:
    """Sample this node; `output` is yaml or json."""
    sampler = Sampler(node)
    report = sampler.sample()
    sampler.close()
    problem = report.status.problem if report.status else None
    if problem is not None and problem.reason in NO_GPU:
        return Once("", f"{problem.message} There is no GPU to report on {node}.", NO_GPU_HERE)
    text = (
        msgspec.json.format(msgspec.json.encode(report)).decode() + "\n"
        if output == "json"
        else yaml.safe_dump(msgspec.to_builtins(report), sort_keys=False, default_flow_style=None)
    )
    return Once(text, problem.message if problem else "", NOT_TOLD if problem else 0)
