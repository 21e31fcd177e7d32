"""Finds rows without columns, and why they have none."""
