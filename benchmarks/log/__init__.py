"""Costs of the log: `python -m benchmarks.log`. The written table contains the target of each cost."""
