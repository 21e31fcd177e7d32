"""The Parquet files of a topic's Iceberg table, as a Delta table too. `follow.py` is the place to start.

schema.py, stats.py      a table's columns and a file's statistics in Delta's words (pure)
actions.py, state.py     what a log of Delta consists of, and what a table is after it (pure)
steps.py                 which commits lead from there to what Iceberg lists (pure)
log.py, checkpoint.py    the log in storage
follow.py                one after the other, for one table
"""
