"""Requests about records: Produce, Fetch, ListOffsets."""
