"""Record batches to Arrow columns to Parquet files."""
