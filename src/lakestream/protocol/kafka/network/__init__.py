"""Connections of Kafka clients, their limits and their metrics."""
