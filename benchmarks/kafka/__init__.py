"""Lakestream beside Apache Kafka, through the same client: `python -m benchmarks.kafka`.

`sides.py` starts the servers, `load/` is what they are asked (in processes of their own), `loads.py` runs it and
measures the server meanwhile, `rounds.py` holds the sides against each other. One file per part, with what it asks in
its header: produce, consume, steady, single, idle, cost, rebalance, commits, transactions, failover.
"""
