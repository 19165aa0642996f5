"""The same, quicker."""
