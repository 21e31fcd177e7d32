"""Consistency checks of logs and tables, for `lakestream doctor`."""
