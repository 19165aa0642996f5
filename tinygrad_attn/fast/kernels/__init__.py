"""The inner loops, as plain functions on arrays: no graph, no Tensors, no argument checks.

Each module opens with its idea; the equations in `functional/` are their specification, and tests
hold them to it.
"""
