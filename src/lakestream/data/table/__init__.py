"""The table of a topic: record batches to rows of Parquet files, and rows to record batches."""
