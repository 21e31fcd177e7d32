"""Reads of the records of a table: offset to snapshot to manifests to row groups to record batches."""
