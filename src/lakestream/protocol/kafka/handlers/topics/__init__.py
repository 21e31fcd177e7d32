"""Requests about topics and partitions."""
