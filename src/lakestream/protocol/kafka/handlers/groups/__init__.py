"""Requests about groups and their offsets."""
