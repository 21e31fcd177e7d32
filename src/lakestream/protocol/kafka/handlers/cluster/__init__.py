"""Requests about the cluster and its metadata."""
