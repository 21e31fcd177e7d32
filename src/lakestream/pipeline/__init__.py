"""Moves records from the log into tables, one micro-batch after the other. Read micro_batch.py first."""
