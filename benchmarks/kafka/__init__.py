"""Lakestream compared with Apache Kafka, through the same client: `python -m benchmarks.kafka`.

`servers.py` starts the servers. `load/` generates load in its own processes. `loads.py` runs the load and measures the
server. `rounds.py` compares the servers. Each part is a file with its target in the header: produce, consume, steady,
single, idle, cost, rebalance, commits, transactions, failover.
"""
