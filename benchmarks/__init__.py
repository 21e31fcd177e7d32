"""Benchmarks: each compares Lakestream with a peer in the same run."""
