"""Shapes of bytes, no logic: what the API server, kube-scheduler and kvitej say to each other."""
