"""The log's costs: `python -m benchmarks.log`. What is asked of each is in the table that it writes."""
