"""Turn a function and its gradients into plain NumPy, to read (`source`) or run (`compile`)."""
