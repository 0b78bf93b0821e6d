"""kvitej with its webhook and policies on a control plane, as the guide in README sets it up."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from extender import certs
from tests.controlplane.api import Api, ApiError, Object, pod, wait_until
from tests.controlplane.extender import Extender, grant
from tests.controlplane.processes import ControlPlane, free_ports

CONFIG = Path(__file__).parents[2] / "scheduler-config"
CRD = CONFIG / "crd-fairnesspolicies.yaml"
WEBHOOKS = CONFIG / "webhook.yaml"


def policy(name: str, tenants: list[Object], **more: Any) -> Object:
    return {
        "apiVersion": "kvitej.io/v1alpha1",
        "kind": "FairnessPolicy",
        "metadata": {"name": name},
        "spec": {"decayHalfLife": "24h", "tenants": tenants, **more},
    }


async def install(api: Api) -> None:
    """RBAC and CRD."""
    await grant(api)
    await api.apply(yaml.safe_load(CRD.read_text()))


@contextlib.asynccontextmanager
async def admitted(
    plane: ControlPlane, api: Api, *, name: str = "kvitej", config: Mapping[str, Any] | None = None
) -> AsyncIterator[Extender]:
    """A kvitej that the API server asks about GPU pods; entered once it does."""
    made = certs.make(Path(tempfile.mkdtemp(dir=plane.directory)) / "certs", ("127.0.0.1",))
    _, cert, key = made.files
    (port,) = free_ports(1)
    options = ("--webhook", f"127.0.0.1:{port}", "--webhook-cert", cert, "--webhook-key", key)
    extender = Extender(plane, name=name, config=config, options=options)
    try:
        extender.wait_synced()
        await register(api, f"https://127.0.0.1:{port}", made.ca_bundle)
        yield extender
    finally:
        await unregister(api)
        extender.stop()


async def register(api: Api, address: str, ca_bundle: str, *, asks: bool = True) -> None:
    """Apply the shipped webhook configurations, pointed at `address`, and wait until the API server asks."""
    for manifest in yaml.safe_load_all(WEBHOOKS.read_text()):
        for webhook in manifest["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": address + path, "caBundle": ca_bundle}
        await api.apply(manifest)

    async def gated() -> bool:
        probe = pod("probe", scheduler="fair-quota")
        dry = await api.post("/api/v1/namespaces/default/pods", probe, {"dryRun": "All"})
        return bool(dry["spec"].get("schedulingGates"))

    if asks:
        await wait_until(gated, 15, "a dry run is gated")


async def unregister(api: Api) -> None:
    for kind in ("mutating", "validating"):
        with contextlib.suppress(ApiError):
            await api.delete(f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/kvitej")
