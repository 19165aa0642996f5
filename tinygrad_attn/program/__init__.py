"""Write a function and its gradients as plain NumPy, to read and to run (`ta.source`)."""
