"""Requests about transactions."""
