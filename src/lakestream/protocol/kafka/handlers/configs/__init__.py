"""Requests about configs."""
