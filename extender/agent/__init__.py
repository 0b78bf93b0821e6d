"""What runs on each GPU node: reads the cards and the kubelet, and reports what they really are."""
