"""The node's agent, the only user of pynvml: NVML and /proc → GPUNode."""
