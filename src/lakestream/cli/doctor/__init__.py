"""Implements `lakestream doctor`."""
