"""Runs `kvitej serve` as its own process beside a control plane, as an API user that has only the shipped RBAC."""

from __future__ import annotations

import re
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from extender import schedulerconfig
from tests.controlplane.api import Api
from tests.controlplane.processes import ControlPlane, free_ports
from tests.controlplane.program import Process

RIGHTS = [
    Path(__file__).parents[2] / "scheduler-config" / name for name in ("rbac.yaml", "admission-policy.yaml")
]
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Extender(Process):
    """One `kvitej serve --kubeconfig`, on two ports that stay the same over a restart under the same name."""

    def __init__(
        self,
        control_plane: ControlPlane,
        *,
        name: str = "kvitej",
        config: Mapping[str, Any] | None = None,
        ports: tuple[int, int] | None = None,
        kubeconfig: Path | None = None,
        options: Sequence[str | Path] = (),
    ) -> None:
        self.ports = ports or (lambda found: (found[0], found[1]))(free_ports(2))
        path = control_plane.directory / f"{name}.config.yaml"
        path.write_text(yaml.safe_dump(dict(config or {})))
        super().__init__(
            name,
            [
                *(sys.executable, "-m", "extender", "serve"),
                *("--kubeconfig", kubeconfig or control_plane.kubeconfig("kvitej")),
                *("--config", path, "--port", str(self.ports[0]), "--http", f"127.0.0.1:{self.ports[1]}"),
                *options,
            ],
            control_plane.directory / f"{name}.log",
        )

    def wait_synced(self) -> Extender:
        """Wait until /readyz says that the book is synced."""
        self.wait_ready(_OPENER, urllib.request.Request(f"http://127.0.0.1:{self.ports[1]}/readyz"))
        return self

    def is_ready(self) -> bool:
        try:
            _OPENER.open(f"http://127.0.0.1:{self.ports[1]}/readyz", timeout=5).close()
        except OSError:
            return False
        return True

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels."""
        with _OPENER.open(f"http://127.0.0.1:{self.ports[1]}/metrics", timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return sum(
                sample.value
                for family in families
                for sample in family.samples
                if sample.name == name and labels.items() <= sample.labels.items()
            )

    def scheduler_config(self) -> dict[str, Any]:
        """The shipped scheduler configuration, pointed at this process."""
        return scheduler_config(self.ports[0])


def scheduler_config(port: int) -> dict[str, Any]:
    """What `kvitej scheduler-config` prints, for a kvitej on another port and without its file of credentials."""
    text = re.sub(r"http://127\.0\.0\.1:\d+", f"http://127.0.0.1:{port}", schedulerconfig.render())
    config: dict[str, Any] = yaml.safe_load(text)
    for ours in ("clientConnection", "leaderElection"):
        config.pop(ours, None)
    return config


async def grant(api: Api) -> None:
    """Apply the shipped RBAC, and the admission policy that limits it."""
    for path in RIGHTS:
        for manifest in yaml.safe_load_all(path.read_text()):
            await api.apply(manifest)
