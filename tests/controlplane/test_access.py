"""Tokens and rights as a real API server reviews them, asked by the user who has only the rights that we ship."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from extender.cluster.state import ClusterState
from extender.config import Config
from extender.fairness.record import Fairness
from extender.kube.access import Access
from extender.kube.client import connect
from extender.schedulerconfig import managed_resources
from extender.serve.app import reviews
from extender.serve.book import Book
from extender.serve.listening import listening
from extender.serve.sharing import SharesDoor
from extender.serve.tokens import ByToken
from tests.controlplane.api import Api, wait_until
from tests.controlplane.extender import grant
from tests.controlplane.processes import ControlPlane
from tests.decide.planning import World
from tests.fairness.builders import policy
from tests.serve.reviews import Served

pytestmark = pytest.mark.controlplane

RBAC = "rbac.authorization.k8s.io"
RIGHTS = {
    "research": {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    "operators": {"apiGroups": ["kvitej.io"], "resources": ["fairnesspolicies"], "verbs": ["get"]},
    "training": {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
    "hardware": {"apiGroups": ["kvitej.io"], "resources": ["gpunodes"], "verbs": ["get"]},
}
"""What the service account `reader` of each namespace may do: in its namespace, or in the cluster."""

CLUSTERWIDE = ("operators", "hardware")


async def reader(api: Api, namespace: str) -> str:
    """A service account with its rights; its token."""
    await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    meta = {"name": "reader", "namespace": namespace}
    await api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
    cluster = "Cluster" if namespace in CLUSTERWIDE else ""
    named = {"name": f"reader-{namespace}", **({} if cluster else {"namespace": namespace})}
    rights = [RIGHTS[namespace]]
    await api.apply(
        {"apiVersion": f"{RBAC}/v1", "kind": f"{cluster}Role", "metadata": named, "rules": rights}
    )
    await api.apply(
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": f"{cluster}RoleBinding",
            "metadata": named,
            "roleRef": {"apiGroup": RBAC, "kind": f"{cluster}Role", "name": named["name"]},
            "subjects": [{"kind": "ServiceAccount", **meta}],
        }
    )
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/reader/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": None}}
    token: str = (await api.post(path, body))["status"]["token"]
    return token


@pytest.fixture
async def access(control_plane: ControlPlane, api: Api) -> AsyncIterator[Access]:
    await grant(api)
    async with await connect(control_plane.kubeconfig("kvitej")) as client:
        access = Access(client, 10.0)

        async def reviewed() -> bool:
            try:
                user = await access.user(control_plane.token("admin"))
                return user is not None and await access.may(user, "list", "pods", namespace="default")
            except ConnectionError:
                return False

        await wait_until(reviewed, 20, "our user may ask for reviews")
        yield access


async def test_a_token_stands_for_its_service_account_and_has_its_rights_alone(
    access: Access, api: Api
) -> None:
    user = await access.user(await reader(api, "research"))
    assert user is not None
    assert user.username == "system:serviceaccount:research:reader"
    assert "system:serviceaccounts:research" in (user.groups or [])

    async def may_list() -> bool:
        return await access.may(user, "list", "pods", namespace="research")

    await wait_until(may_list, 20, "its role holds")
    assert not await access.may(user, "list", "pods", namespace="training")
    assert not await access.may(user, "list", "pods")
    assert not await access.may(user, "get", "fairnesspolicies", group="kvitej.io")


async def test_a_right_may_come_by_a_group(access: Access, api: Api) -> None:
    user = await access.user(await reader(api, "training"))
    assert user is not None
    named = {"name": "by-group", "namespace": "default"}
    rights = [RIGHTS["research"]]
    await api.apply({"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": named, "rules": rights})
    await api.apply(
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": named,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "by-group"},
            "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": "system:serviceaccounts:training"}],
        }
    )

    async def may_list() -> bool:
        return await access.may(user, "list", "pods", namespace="default")

    await wait_until(may_list, 20, "the group's role holds")


async def test_what_is_no_token_is_nobody(access: Access, api: Api) -> None:
    token = await reader(api, "research")
    for wrong in ("x", token[:-5] + "AAAAA", token + "x"):
        assert await access.user(wrong) is None


async def test_shares_and_devices_are_told_to_whom_the_api_server_lets_see_them(
    access: Access, api: Api
) -> None:
    world = World([policy()], nodes=["n0"])
    door = SharesDoor(Book(ClusterState(managed_resources())), lambda: world.planner, Fairness(), lambda: 0.0)
    app = reviews(Served().door, Config(), (door, ByToken(access)))
    tokens = {namespace: await reader(api, namespace) for namespace in RIGHTS}
    async with listening(app, "127.0.0.1", 0) as at, aiohttp.ClientSession() as session:

        async def status(path: str, who: str) -> int:
            headers = {"Authorization": f"Bearer {tokens[who]}"}
            async with session.get(at + path, headers=headers) as answer:
                return answer.status

        async def told() -> bool:
            return [
                await status("/shares", "operators"),
                await status("/shares/research", "research"),
                await status("/devices", "hardware"),
            ] == [200] * 3

        await wait_until(told, 20, "the roles hold")
        assert await status("/line", "operators") == 200
        assert await status("/shares/training", "operators") == 200
        assert await status("/shares", "research") == 403
        assert await status("/shares/training", "research") == 403
        assert await status("/shares/training", "training") == 403
        assert await status("/devices", "operators") == 403
        assert await status("/devices?node=n0", "research") == 403
        assert await status("/devices?node=n0", "hardware") == 404
        assert await status("/shares", "hardware") == 403
