"""Runs etcd, kube-apiserver and kube-schedulers on free loopback ports in one temporary directory.

`ControlPlane` is a synchronous context manager, ready in about 2 s: certificates and tokens are written, etcd
and kube-apiserver start, and schedulers join when a test asks for them. Every program logs to a file in the
directory, and every error carries the end of that log. Data does not outlive the context.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import json
import secrets
import shutil
import socket
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import trustme

from tests.controlplane.binaries import Binaries
from tests.controlplane.program import ControlPlaneError, Process, Scheduler

__all__ = ["ControlPlane", "ControlPlaneError", "Process", "Scheduler"]

P = TypeVar("P", bound=Process)

SCHEDULER_USER = "kube-scheduler"
# A real cluster's node controller lifts the not-ready taint that TaintNodesByCondition puts on every new
# node, and its token controller makes the service accounts that ServiceAccount demands: here neither runs.
DISABLED_ADMISSION = "ServiceAccount,TaintNodesByCondition"


class ControlPlane:
    """etcd and kube-apiserver, and the schedulers started beside them.

    Every method blocks: where an event loop has to go on meanwhile, for instance to answer the scheduler as
    its extender, call it through `asyncio.to_thread`.

    Parameters
    ----------
    binaries
        What `tests.controlplane.binaries.ensure` returned.
    directory
        Where data, logs and credentials go; without one, a temporary directory that is removed at the end.
    users
        More API users, as {name: groups}. There are always `admin` (in system:masters), `kvitej` (in no
        group: it may do only what RBAC objects grant it) and `kube-scheduler` (the API user
        system:kube-scheduler, with the cluster roles that the API server itself binds to it).
    apiserver_flags
        More flags for kube-apiserver; they come last.
    """

    def __init__(
        self,
        binaries: Binaries,
        directory: Path | None = None,
        *,
        users: Mapping[str, Sequence[str]] | None = None,
        apiserver_flags: Sequence[str] = (),
    ) -> None:
        self.binaries = binaries
        self._given_directory = directory
        self._apiserver_flags = tuple(apiserver_flags)
        self._groups = {"admin": ("system:masters",), "kvitej": (), SCHEDULER_USER: (), **(users or {})}
        self._tokens = {user: secrets.token_hex(16) for user in self._groups}
        self._processes: dict[str, Process] = {}

    def __enter__(self) -> Self:
        self.directory = Path(self._given_directory or tempfile.mkdtemp(prefix="kvitej-")).resolve()
        try:
            self._write_credentials()
            self._start_etcd()
            (port,) = free_ports(1)
            self.url = f"https://127.0.0.1:{port}"
            self.start_apiserver()
            self._create_default_namespace()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def ca_file(self) -> Path:
        """The CA (PEM) that signed the certificates of kube-apiserver and kube-scheduler."""
        return self.directory / "ca.crt"

    @property
    def etcd(self) -> Process:
        return self._processes["etcd"]

    @property
    def apiserver(self) -> Process:
        return self._processes["kube-apiserver"]

    def token(self, user: str = "admin") -> str:
        """The bearer token of a user."""
        if user not in self._tokens:
            raise ValueError(f"No user {user!r} among {', '.join(self._tokens)}: pass it in users.")
        return self._tokens[user]

    def add_user(self, user: str, token: str) -> None:
        """Know a token that the API server gave out, such as a service account's, under a name."""
        self._tokens[user] = token

    def kubeconfig(self, user: str = "admin") -> Path:
        """The path of a kubeconfig file for a user."""
        path = self.directory / f"{user}.kubeconfig"
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "loopback", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self.token(user)}}],
            "contexts": [{"name": "loopback", "context": {"cluster": "loopback", "user": user}}],
            "current-context": "loopback",
        }
        path.write_text(json.dumps(document, indent=1))
        return path

    def start_apiserver(self) -> None:
        """Start kube-apiserver, always on the same port with the same certificate and data; wait for it."""
        service_accounts = self.directory / "service-accounts.key"
        arguments: list[str | Path] = [
            self.binaries.kube_apiserver,
            f"--etcd-servers={self._etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.url.rpartition(':')[2]}",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=RBAC",
            f"--disable-admission-plugins={DISABLED_ADMISSION}",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            f"--tls-cert-file={self.directory / 'server.crt'}",
            f"--tls-private-key-file={self.directory / 'server.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={service_accounts}",
            f"--service-account-signing-key-file={service_accounts}",
            # Without it, SIGTERM closes the port and then waits up to 60 s for watches that nobody ends.
            "--shutdown-watch-termination-grace-period=5s",
            *self._apiserver_flags,
        ]
        self._start(Process, "kube-apiserver", arguments).wait_ready(self._http, self._request("/readyz"))

    def stop_apiserver(self, *, kill: bool = False) -> None:
        """End kube-apiserver with SIGTERM, or with SIGKILL, and wait; etcd keeps the data."""
        if kill:
            self.apiserver.kill()
        else:
            self.apiserver.stop()

    def start_scheduler(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        name: str = "kube-scheduler",
        feature_gates: Mapping[str, bool] | None = None,
    ) -> Scheduler:
        """Start a kube-scheduler and wait until it is healthy.

        Parameters
        ----------
        config
            Keys of a KubeSchedulerConfiguration, for instance `profiles` and `extenders`. Added to it are the
            client connection (qps 5000, burst 10000: the default of 50 caps every measurement) and
            `leaderElect: false`, each unless given.
        name
            Names its log and its configuration file; another scheduler beside it needs another name.
        feature_gates
            As in {"OpportunisticBatching": False}.
        """
        given = dict(config or {})
        connection = {"kubeconfig": str(self.kubeconfig(SCHEDULER_USER)), "qps": 5000, "burst": 10000}
        document = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            **given,
            "clientConnection": {**connection, **given.get("clientConnection", {})},
            "leaderElection": {"leaderElect": False, **given.get("leaderElection", {})},
        }
        config_path = self.directory / f"{name}.yaml"
        config_path.write_text(json.dumps(document, indent=1))
        (port,) = free_ports(1)
        arguments: list[str | Path] = [
            self.binaries.kube_scheduler,
            f"--config={config_path}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={self.directory / 'server.crt'}",
            f"--tls-private-key-file={self.directory / 'server.key'}",
            "--authentication-skip-lookup",
            "--authorization-always-allow-paths=/*",
        ]
        if feature_gates:
            gates = ",".join(f"{gate}={str(on).lower()}" for gate, on in feature_gates.items())
            arguments.append(f"--feature-gates={gates}")
        scheduler = self._start(Scheduler, name, arguments)
        scheduler.url = f"https://127.0.0.1:{port}"
        scheduler.wait_ready(self._http, urllib.request.Request(f"{scheduler.url}/healthz"))
        return scheduler

    def compact(self) -> int:
        """Drop all history before etcd's current revision; return that revision."""
        key = base64.b64encode(b"compact").decode()
        revision = int(self._ask_etcd("/v3/kv/range", {"key": key})["header"]["revision"])
        self._ask_etcd("/v3/kv/compaction", {"revision": revision, "physical": True})
        return revision

    def etcd_metric(self, name: str) -> float:
        """What etcd counts under `name`, which has no labels."""
        with self._http.open(f"{self._etcd_url}/metrics", timeout=30) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(f"{name} "):
                    return float(line.rpartition(" ")[2])
        raise self.etcd.error(f"has no metric {name}")

    def tail(self, name: str, lines: int = 20) -> str:
        """The last lines of a program's log: `etcd`, `kube-apiserver` or a scheduler's name."""
        return self._processes[name].tail(lines)

    def _start(self, kind: type[P], name: str, arguments: Sequence[str | Path]) -> P:
        running = self._processes.get(name)
        if running is not None and running.running:
            raise ControlPlaneError(f"{name} runs already (pid {running.pid}): stop it, or use another name.")
        process = kind(name, arguments, self.directory / f"{name}.log")
        self._processes[name] = process
        return process

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
        self._etcd_url = client
        arguments: list[str | Path] = [
            self.binaries.etcd,
            "--name=loopback",
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=loopback={peer}",
            "--unsafe-no-fsync",
        ]
        health = urllib.request.Request(f"{client}/health")
        self._start(Process, "etcd", arguments).wait_ready(self._http, health)

    def _write_credentials(self) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.ca_file)
        server = authority.issue_cert("127.0.0.1", "localhost")
        server.private_key_pem.write_to_path(self.directory / "server.key")
        (self.directory / "server.crt").write_bytes(b"".join(blob.bytes() for blob in server.cert_chain_pems))
        key = authority.issue_cert("service-accounts").private_key_pem
        key.write_to_path(self.directory / "service-accounts.key")
        tls = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=self.ca_file))
        self._http = urllib.request.build_opener(urllib.request.ProxyHandler({}), tls)
        with open(self.directory / "tokens.csv", "w", newline="") as file:
            rows = csv.writer(file)
            for user, groups in self._groups.items():
                name = f"system:{user}" if user == SCHEDULER_USER else user
                rows.writerow([self._tokens[user], name, name, ",".join(groups)])

    def _create_default_namespace(self) -> None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
        try:
            self._http.open(self._request("/api/v1/namespaces", body), timeout=30).close()
        except urllib.error.HTTPError as error:
            with error:
                if error.code != HTTPStatus.CONFLICT:
                    reason = error.read().decode()
                    raise self.apiserver.error(f"refused namespace default: {reason}") from None

    def _request(self, path: str, body: Mapping[str, Any] | None = None) -> urllib.request.Request:
        headers = {"Authorization": f"Bearer {self.token()}", "Content-Type": "application/json"}
        return urllib.request.Request(self.url + path, json.dumps(body).encode() if body else None, headers)

    def _ask_etcd(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(self._etcd_url + path, json.dumps(body).encode())
        try:
            with self._http.open(request, timeout=30) as answer:
                decoded: dict[str, Any] = json.load(answer)
                return decoded
        except urllib.error.HTTPError as error:
            with error:
                raise self.etcd.error(f"answered {error.code} to {path}: {error.read().decode()}") from None

    def _end(self) -> None:
        for process in reversed(self._processes.values()):
            process.kill()
        if self._given_directory is None:
            shutil.rmtree(self.directory, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Loopback ports that nothing listens on now, all different."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
