"""The configuration that points a kube-scheduler at kvitej.

kube-scheduler calls an extender only for pods that ask for a resource in its list, and the list has no
wildcard: a name left out goes past every check. It is therefore built from the geometry table. The output of
`render` is committed as `scheduler-config/kube-scheduler.yaml`.
"""

from __future__ import annotations

import textwrap
from typing import Any

import yaml

from extender.cluster.geometry import mig_resources
from extender.wire.marks import PROFILES

IN_TREE_SCORERS = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "DynamicResources": 2,
    "NodeResourcesFit": 1,
    "NodeResourcesBalancedAllocation": 1,
    "ImageLocality": 1,
    "VolumeBinding": 1,
}
"""Weights of the plugins that score nodes by default in Kubernetes v1.37, from `getDefaultPlugins` of
pkg/scheduler/apis/config/v1/default_plugins.go. VolumeBinding has no weight there, which counts as 1."""

_IN_TREE_MOST = 100 * sum(IN_TREE_SCORERS.values())
_POINT = 10  # what the scheduler multiplies an extender's 0..10 by, to reach its own 0..100

WEIGHT = _IN_TREE_MOST // _POINT + 1
"""The smallest weight with which one point of ours is more than all in-tree scorers at their most."""

_COMMENTS = {
    "clientConnection": "Where kubeadm keeps the scheduler's credentials.",
    "leaderElection": "On, for control planes with several schedulers; a single one just leads.",
    "percentageOfNodesToScore": "All nodes, always. By default the scheduler stops looking once it has "
    "found enough that fit by its own rules; the best, or the only one with room, may be outside of these.",
    "profiles": "A pod names its profile in spec.schedulerName. The extender serves both.",
    "scoringStrategy": "Full nodes first, so that whole nodes stay free for work that needs many GPUs.",
    "urlPrefix": "`kvitej serve` on the same host.",
    f"weight: {WEIGHT}": f"One point of ours counts weight x {_POINT} = {WEIGHT * _POINT}. The in-tree "
    f"scorers at 100 each come to {_IN_TREE_MOST} = 100 x ("
    + " + ".join(f"{name} {weight}" for name, weight in IN_TREE_SCORERS.items())
    + "), so they only decide between nodes that kvitej finds equal.",
    "nodeCacheCapable": "Names instead of node objects: kvitej keeps a book of its own.",
    "ignorable": "While kvitej is down, GPU pods wait; otherwise the scheduler would bind them unchecked.",
    "httpTimeout": "For each call.",
    "managedResources": "A pod that asks for none of these never reaches kvitej, and there is no wildcard. "
    "Add what your device plugins advertise beyond this; `kvitej serve` warns of such names.",
}


def managed_resources() -> list[str]:
    """Every resource name that kvitej answers for: whole GPUs, MIG instances, and the shared form of each."""
    names = ("nvidia.com/gpu", *mig_resources())
    return [form for name in names for form in (name, f"{name}.shared")]


def scheduler_configuration() -> dict[str, Any]:
    """The KubeSchedulerConfiguration, as plain data."""
    resources = [
        {"name": name, "weight": weight}
        for name, weight in (("nvidia.com/gpu", 5), ("cpu", 1), ("memory", 1))
    ]
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": "/etc/kubernetes/scheduler.conf"},
        "leaderElection": {"leaderElect": True},
        "percentageOfNodesToScore": 100,
        "profiles": [
            {
                "schedulerName": name,
                "pluginConfig": [
                    {
                        "name": "NodeResourcesFit",
                        "args": {
                            "scoringStrategy": {
                                "type": "MostAllocated",
                                "resources": [dict(r) for r in resources],
                            }
                        },
                    }
                ],
            }
            for name in PROFILES
        ],
        "extenders": [
            {
                "urlPrefix": "http://127.0.0.1:8888",
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "preemptVerb": "preempt",
                "bindVerb": "bind",
                "weight": WEIGHT,
                "nodeCacheCapable": True,
                "ignorable": False,
                "httpTimeout": "5s",
                "managedResources": [{"name": name} for name in managed_resources()],
            }
        ],
    }


def render() -> str:
    """The KubeSchedulerConfiguration as YAML, each choice under a comment with its reason."""
    lines = ["# Printed by `kvitej scheduler-config`; start kube-scheduler with --config set to this file."]
    unexplained = dict(_COMMENTS)
    for line in yaml.safe_dump(scheduler_configuration(), sort_keys=False, width=1000).splitlines():
        text = line.lstrip("- ")
        key = next((key for key in unexplained if text == key or text.startswith(f"{key}:")), None)
        if key is not None:
            indent = line[: len(line) - len(line.lstrip())] + "# "
            lines += textwrap.wrap(unexplained.pop(key), 100, initial_indent=indent, subsequent_indent=indent)
        lines.append(line)
    return "\n".join(lines) + "\n"
