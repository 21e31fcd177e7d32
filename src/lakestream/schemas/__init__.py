"""Schemas of values and keys: read, compared, turned into the types of columns. Pure; nothing here knows a table."""
