"""A real control plane on loopback: etcd, kube-apiserver and kube-scheduler for tests and benches.

`binaries` builds the three programs from their Go modules once and caches them, `processes` runs them in a
temporary directory, and `api` talks to the API server they form. No kubelet and no controller manager run:
nodes and pods are API objects that only the scheduler moves.
"""
