"""Environment, measurement and reports of all benchmarks."""
