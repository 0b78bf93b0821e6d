"""An embedded cluster from a file, and a stand-in for kube-scheduler that plays its workload over the verbs."""
