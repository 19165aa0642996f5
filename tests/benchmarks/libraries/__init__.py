"""The libraries.  Each is a class whose method `kind(arrays, **sizes)` returns `(step, results)`.

`step()` runs the workload once, forward and backward; `results()` gives a dict of arrays to compare with PyTorch's.  A library that
cannot run a workload has no method of that name.
"""
