"""The way into the table and back, beside what people use today: `python -m benchmarks.table`.

That peer is Apache Kafka with a Spark Structured Streaming job which writes Iceberg (`stream.py`). `sides.py` starts
both, `commits.py` sees when which records got into a table, `generated.py` makes tables that are old already. One file
per part, with what it asks in its header: move, stored, fresh, idle, history, age; typed and from_avro for values with
a schema (`orders.py`). Load generators and rounds are those of `benchmarks.kafka`.

Two more are run by hand, each in one process: `columns.py` and `replay.py`.
"""
