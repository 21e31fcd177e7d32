"""Converts rows that kept their bytes to columns."""
