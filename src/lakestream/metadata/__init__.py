"""Typed records of topics, logs, groups, transactions and schemas, and the stores that hold them."""
