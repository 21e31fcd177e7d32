"""Starts Spark and runs jobs on it."""
