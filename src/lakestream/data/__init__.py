"""The data of topics: the log, the table, and the conversion between them."""
