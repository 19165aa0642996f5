"""Benchmarks: ratios to other libraries, measured in turns.  `make bench`, or `python -m tests.benchmarks --help`.

Each library runs in a process of its own with its threads set by the environment before anything is imported.  The parent tells them
to take turns, A B A B, and a ratio is the median over rounds of ours / theirs in the same round, so that whatever else the machine does
hits both.  Nothing is timed before its result has been compared with PyTorch's.
"""
