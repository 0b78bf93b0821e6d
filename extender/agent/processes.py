"""Whose process is it: from a pid to the uid of its pod, by the names of its control groups.

The kubelet names a pod's group after the pod's uid: `…/kubepods-burstable-pod<uid>.slice/…` with systemd, which wants
underscores for dashes, `…/kubepods/burstable/pod<uid>/…` without. What follows is the runtime's (containerd, CRI-O,
docker) and not needed. cgroup v2 has one line, v1 one per controller; all say the same pod.
"""

from __future__ import annotations

import re
from pathlib import Path

PROC = Path("/proc")

_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}"
_STATIC = r"[0-9a-f]{32}"
_POD = re.compile(rf"(?:^|[/:-])pod({_UID}|{_STATIC})(?=\.slice|/|:|$)")
"""A static pod, made from a file on the node, has a hash without dashes for a uid."""


def pod_of(pid: int, proc: Path = PROC) -> str | None:
    """The uid of the pod that a process belongs to; None if it is of no pod.

    Needs the host's pids: a container that does not share them may see others under the same numbers.

    Raises
    ------
    ProcessLookupError
        If the process can't be seen: it has ended, or is not in this pid namespace.
    """
    try:
        return pod_in((proc / str(pid) / "cgroup").read_text(errors="replace"))
    except OSError as error:
        raise ProcessLookupError(f"Process {pid} can't be seen.") from error


def pod_in(cgroup: str) -> str | None:
    """The pod that the text of a `/proc/PID/cgroup` names; the outer one, where a pod runs a Kubernetes of its own.

    An agent in a group namespace of its own sees others relative to itself: `0::/../../pod<uid>/…`.
    """
    for line in cgroup.splitlines():
        found = _POD.search(line.split(":", 2)[-1])
        if found:
            return found.group(1).replace("_", "-")
    return None


def command_of(pid: int, proc: Path = PROC) -> str:
    """The name of a process, at most 15 letters; empty if it has ended or may not be looked at."""
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").rstrip("\n")
    except OSError:
        return ""
