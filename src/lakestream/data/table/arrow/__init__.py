"""Rows of a table in Arrow, and record batches made of them: what reading and writing share."""
