"""A Delta log over the Parquet files of a topic's Iceberg table. Read `sync.py` first.

schema.py, stats.py      the table's schema and the files' statistics for Delta (pure)
actions.py, state.py     the actions of a log, and the state of a table after them (pure)
diff.py                  the commits from that state to the files of the Iceberg table (pure)
log.py, checkpoint.py    the log in storage
sync.py                  all steps, for one table
"""
