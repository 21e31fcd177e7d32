"""Simulated and real stores, brokers and processes for tests."""
