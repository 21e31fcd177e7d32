"""Keeps Delta tables over the files of Iceberg tables, for topics with `lakestream.table.formats=iceberg,delta`."""
