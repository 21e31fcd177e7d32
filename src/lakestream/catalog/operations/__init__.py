"""Commits to a topic's table, named as Iceberg names them."""
