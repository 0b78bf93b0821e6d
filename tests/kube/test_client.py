"""Credentials in, sentences out: how the client finds its cluster and tells failures apart."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import certifi
import pytest
import yaml
from kubernetes.aio.config import incluster_config

from extender.kube import client as client_module
from extender.kube.client import AnswerLostError, Client, KubeConfigError, NotSentError, connect
from tests.fakes.apiserver import FakeApiServer

NODES = "/api/v1/nodes"


def kubeconfig(path: Path, server: str, user: dict[str, Any]) -> Path:
    """Write a kubeconfig whose user has these credentials."""
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return path


BROKEN = {
    "not yaml": "a: [",
    "a list": "- a",
    "empty": "",
    "no contexts": "current-context: c",
    "no such context": yaml.safe_dump(
        {"current-context": "other", "contexts": [], "clusters": [], "users": []}
    ),
}


@pytest.mark.parametrize("what", BROKEN)
async def test_a_kubeconfig_that_cannot_be_used_is_an_error_that_names_it(tmp_path: Path, what: str) -> None:
    path = tmp_path / "config"
    path.write_text(BROKEN[what])
    with pytest.raises(KubeConfigError, match=rf"The kubeconfig {path} cannot be used: .+\."):
        await connect(path)


async def test_a_kubeconfig_that_does_not_exist_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(KubeConfigError, match=r"nowhere does not exist\."):
        await connect(tmp_path / "nowhere")


async def test_outside_a_cluster_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KubeConfigError, match=r"service account.*name a kubeconfig"):
        await connect(None)


async def test_inside_a_cluster_the_service_account_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("t")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", certifi.where())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    client = await connect(None)
    assert client.server == "https://10.0.0.1:443"


async def until_status(client: Client, status: int) -> None:
    async with asyncio.timeout(5):
        while (await client.get(NODES)).status != status:
            await asyncio.sleep(0.02)


async def test_a_token_file_that_was_rotated_is_read_again(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "CREDENTIALS_SECONDS", 0.05)
    token = tmp_path / "token"
    token.write_text("first\n")
    server.token = "first"
    path = kubeconfig(tmp_path / "config", server.url, {"tokenFile": str(token)})
    async with await connect(path) as client:
        assert (await client.get(NODES)).status == 200
        server.token = "second"
        assert (await client.get(NODES)).status == 401
        token.write_text("second\n")
        await until_status(client, 200)


async def test_an_exec_plugin_is_asked_again_and_may_fail_meanwhile(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "CREDENTIALS_SECONDS", 0.05)
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    answer = tmp_path / "answer"
    answer.write_text(json.dumps({**credential, "status": {"token": server.token}}))
    plugin = {
        "apiVersion": credential["apiVersion"],
        "command": sys.executable,
        "args": ["-S", "-c", f"print(open({str(answer)!r}).read())"],
    }
    async with await connect(kubeconfig(tmp_path / "config", server.url, {"exec": plugin})) as client:
        assert (await client.get(NODES)).status == 200
        answer.write_text("no credential")
        await asyncio.sleep(0.3)
        assert (await client.get(NODES)).status == 200
        server.token = "second"
        answer.write_text(json.dumps({**credential, "status": {"token": "second"}}))
        await until_status(client, 200)


async def test_a_call_that_reaches_nobody_was_certainly_not_sent(
    server: FakeApiServer, client: Client
) -> None:
    await server.stop()
    with pytest.raises(NotSentError, match="not reached"):
        await client.post("/api/v1/namespaces/default/pods/p/binding", b"{}")
    await server.start()


async def test_a_call_without_an_answer_in_time_may_have_been_handled(
    server: FakeApiServer, client: Client
) -> None:
    server.pause()
    with pytest.raises(AnswerLostError, match=r"without an answer for 0\.\d s"):
        await client.get(NODES, timeout=0.1)


async def test_a_connection_that_breaks_may_have_carried_the_call(
    server: FakeApiServer, client: Client
) -> None:
    server.put_pod("p")
    server.before_binding = "drop"
    with pytest.raises(AnswerLostError, match="broke"):
        await client.post("/api/v1/namespaces/default/pods/p/binding", b"{}")


async def test_a_redirect_is_not_followed_with_our_credentials(server: FakeApiServer, client: Client) -> None:
    server.refuse = 302
    assert (await client.get(NODES)).status == 302
