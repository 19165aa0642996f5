"""Mutants: is there a test for every number that the package computes?  `make mutants`, or `python -m tests.mutants --help`.

A mutant is the package with one expression changed: a sign, a factor, the order of two operands. If the tests of the room
where it stands still pass, something is computed that no test looks at. Nobody writes the places down: `places` walks
the syntax trees of the package's rooms and finds them, so what is new is mutated as soon as it is written. `kinds` says
what is changed and how, `trial` runs the tests on a copy, and `explained.toml` says of each change that survives why
no test can see it.
"""
