"""Nodes and pods as a real cluster has them: small ones for tests, full-size ones for benches."""

from collections.abc import Iterator
from typing import Any

import msgspec

Json = dict[str, Any]
Big = tuple[str, str, str, str, bytes]
"""Key, uid, name, node and the encoded object with @VERSION@ where its resourceVersion goes."""

GPU = {"requests": {"cpu": "4", "memory": "32Gi", "nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}


def node(name: str, **parts: Any) -> Json:
    """A node with 8 GPUs, unless `status` says otherwise."""
    allocatable = {"cpu": "96", "memory": "1007Gi", "pods": "110", "nvidia.com/gpu": "8"}
    meta = {"name": name, **parts.pop("metadata", {})}
    return {"metadata": meta, "spec": {}, "status": {"allocatable": allocatable}, **parts}


def pod(name: str, namespace: str = "default", **parts: Any) -> Json:
    """A pending pod of one GPU, unless `spec` says otherwise."""
    meta = {"name": name, "namespace": namespace, **parts.pop("metadata", {})}
    spec = {"containers": [{"name": "main", "resources": GPU}], **parts.pop("spec", {})}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}, **parts}


def big_nodes(count: int) -> Iterator[Big]:
    """Nodes of 13 KB: GPU discovery labels, 30 images, conditions, managed fields."""
    labels = {f"nvidia.com/gpu.property-{i:02}": f"value-{i:02}" for i in range(25)}
    labels |= {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"}
    labels |= {"nvidia.com/gpu.count": "8", "kubernetes.io/hostname": "@NAME@"}
    images = [
        {
            "names": [
                f"registry.example.com/team-{i:02}/training-image@sha256:{i:064x}",
                f"registry.example.com/team-{i:02}/training-image:v{i}.0.0",
            ],
            "sizeBytes": 9_000_000_000 + i,
        }
        for i in range(30)
    ]
    conditions = [
        {
            "type": kind,
            "status": "False",
            "lastHeartbeatTime": "2026-11-30T12:00:00Z",
            "lastTransitionTime": "2026-11-01T12:00:00Z",
            "reason": f"KubeletHas{kind}",
            "message": f"kubelet reports on {kind}",
        }
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]
    capacity = {"cpu": "96", "memory": "1056234440Ki", "pods": "110", "ephemeral-storage": "3Ti"}
    capacity |= {"nvidia.com/gpu": "8", "nvidia.com/gpu.shared": "0", "hugepages-2Mi": "0"}
    content = _encoded(
        "Node",
        {"name": "@NAME@", "labels": labels, "managedFields": _managed_fields(["kubelet", "nfd", "gfd"], 36)},
        {"podCIDR": "10.0.0.0/24", "providerID": "fake://@NAME@"},
        {"capacity": capacity, "allocatable": capacity, "conditions": conditions, "images": images},
    )
    for i in range(count):
        name, uid = f"gpu-{i:05}", f"00000000-0000-4000-8000-{i:012x}"
        yield name, uid, name, "", content.replace(b"@NAME@", name.encode()).replace(b"@UID@", uid.encode())


def big_pods(count: int, nodes: int) -> Iterator[Big]:
    """Pods of 4 KB with managed fields, bound over all nodes: 8 per node of 1 GPU each, the rest without."""
    with_gpu, without = _big_pod(GPU), _big_pod({"requests": {"cpu": "1", "memory": "2Gi"}})
    for i in range(count):
        place = i % nodes if nodes else 0
        name, uid, at = f"train-{i:06}", f"00000000-0000-4000-9000-{i:012x}", f"gpu-{place:05}"
        content = with_gpu if i < 8 * nodes else without
        card = str(i // nodes if nodes else 0)
        for mark, text in ((b"@NAME@", name), (b"@UID@", uid), (b"@NODE@", at), (b"@CARD@", card)):
            content = content.replace(mark, text.encode())
        yield f"default/{name}", uid, name, at, content


def _big_pod(resources: Json) -> bytes:
    environment = [{"name": f"SETTING_{i:02}", "value": f"the value of setting {i:02}"} for i in range(12)]
    container = {
        "name": "main",
        "image": "registry.example.com/team-01/training-image:v1.0.0",
        "command": ["python", "-m", "train", "--config", "/etc/train/config.yaml"],
        "env": environment,
        "resources": resources,
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    meta = {
        "name": "@NAME@",
        "namespace": "default",
        "labels": {"app": "train", "job-name": "@NAME@", "team": "research"},
        "annotations": {"kvitej.io/devices": '{"units":1.0,"containers":{"main":{"gpu":[@CARD@]}}}'},
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "@NAME@", "uid": "@UID@"}],
        "managedFields": _managed_fields(["kube-controller-manager", "kvitej", "kubelet"], 16),
    }
    spec = {"nodeName": "@NODE@", "schedulerName": "fair-quota", "priority": 0, "containers": [container]}
    status = {"phase": "Running", "podIP": "10.0.0.1", "qosClass": "Burstable", "hostIP": "192.168.0.1"}
    return _encoded("Pod", meta, spec, status)


def _managed_fields(managers: list[str], width: int) -> list[Json]:
    return [
        {
            "manager": manager,
            "operation": "Update",
            "apiVersion": "v1",
            "time": "2026-11-30T12:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {f"f:{manager}.example.com/field-{i:02}": {} for i in range(width)}},
        }
        for manager in managers
    ]


def _encoded(kind: str, meta: Json, spec: Json, status: Json) -> bytes:
    own = {"uid": "@UID@", "resourceVersion": "@VERSION@", "creationTimestamp": "2026-11-30T12:00:00Z"}
    return msgspec.json.encode(
        {"kind": kind, "apiVersion": "v1", "metadata": own | meta, "spec": spec, "status": status}
    )
