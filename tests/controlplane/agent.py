"""Runs `kvitej agent` as its own process: cards of a fake NVML, a fake kubelet, and a token as in a cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane.processes import ControlPlane
from tests.controlplane.program import Process
from tests.fakes.nvml import VARIABLE

ROOT = Path(__file__).parents[2]


class Agent(Process):
    """The agent of `node`, with the rights of `user`, on the cards of the scenario at `cards`."""

    def __init__(
        self,
        control_plane: ControlPlane,
        node: str,
        user: str,
        *,
        library: Path,
        cards: Path,
        config: Mapping[str, Any],
    ) -> None:
        path = control_plane.directory / f"{user}.config.yaml"
        path.write_text(yaml.safe_dump({"agent": dict(config)}))
        packages = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
        super().__init__(
            user,
            [
                *(
                    "env",
                    f"LD_LIBRARY_PATH={library.parent}",
                    f"{VARIABLE}={cards}",
                    f"PYTHONPATH={packages}",
                ),
                *(sys.executable, "-m", "extender", "agent", "--node", node),
                *("--kubeconfig", control_plane.kubeconfig(user), "--config", path),
            ],
            control_plane.directory / f"{user}.log",
        )

    def resident(self) -> int:
        """The memory that it has, in bytes."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
