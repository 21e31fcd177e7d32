"""Costs of writes to the table and of reads from it, compared with a common setup: `python -m benchmarks.table`.

The peer is Apache Kafka with a Spark Structured Streaming job that writes Iceberg (`stream.py`). `servers.py` starts
both. `commits.py` determines when records were committed to a table. `generated.py` creates tables with a long history.
Each part is a file with its target in the header: move, stored, fresh, idle, history, age; typed and from_avro for
values with a schema (`orders.py`). Load generators and rounds are those of `benchmarks.kafka`.

Two more are started manually, and run in one process: `columns.py` and `replay.py`.
"""
