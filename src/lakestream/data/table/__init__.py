"""The table: the history of a topic as rows, and rows as record batches again."""
