"""Reads, writes, merges and filters manifests and manifest lists in Avro. Pure."""
