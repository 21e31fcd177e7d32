"""What all benchmarks share: where they run, how a run is measured, how results are written."""
