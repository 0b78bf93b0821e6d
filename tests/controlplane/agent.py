"""Runs `kvitej agent` as its own process: cards of a fake NVML, a fake kubelet, and a token as in a cluster."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from extender.wire.gpunode import API_VERSION, KIND, PATH
from tests.controlplane.api import Api, ApiError, Object, pod, wait_until
from tests.controlplane.extender import grant
from tests.controlplane.processes import ControlPlane
from tests.controlplane.program import Process
from tests.fakes.nvml import VARIABLE

ROOT = Path(__file__).parents[2]
MANIFESTS = ("crd-gpunodes.yaml", "agent-rbac.yaml", "agent.yaml")
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kvitej/leases"
ACCOUNT = "/api/v1/namespaces/kvitej/serviceaccounts/kvitej-agent"


async def install(api: Api) -> None:
    """Apply kvitej's rights, and everything of the agent that is shipped."""
    await grant(api)
    for name in MANIFESTS:
        for manifest in yaml.safe_load_all((ROOT / "scheduler-config" / name).read_text()):
            await api.apply(manifest)


async def token(api: Api, *, on: str | None) -> str:
    """A token of the agent's service account, bound to a pod of it on the node `on`; None: bound to nothing."""
    asked: Object = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    if on is not None:
        with contextlib.suppress(ApiError):
            await api.delete_pod("kvitej", f"agent-{on}")
        account = {"serviceAccountName": "kvitej-agent", "nodeName": on}
        made = await api.apply(pod(f"agent-{on}", namespace="kvitej", requests={}, spec=account))
        bound = {"kind": "Pod", "apiVersion": "v1", "name": f"agent-{on}", "uid": made["metadata"]["uid"]}
        asked["spec"] = {"boundObjectRef": bound}
    answer: str = (await api.post(f"{ACCOUNT}/token", asked))["status"]["token"]
    return answer


async def limited(agent: Api) -> None:
    """Wait until the shipped rights and admission policy hold, with the API as an agent sees it."""
    probe = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "probe"}}
    told = ""

    async def refused() -> bool:
        nonlocal told
        try:
            await agent.post(PATH, probe, {"dryRun": "All"})
        except ApiError as error:
            told = error.message
        return "as its own node" in told

    await wait_until(refused, 30, lambda: f"an agent may write its own node only: {told}")


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
