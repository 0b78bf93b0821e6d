"""kvitej: fair, topology-aware GPU scheduling beside the stock kube-scheduler."""

__version__ = "0.1.0"
