"""A function and its gradients as plain NumPy: to read (`source`), or to run (`compile`)."""
