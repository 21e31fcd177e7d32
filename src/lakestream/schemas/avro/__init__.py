"""Avro schemas: parsing, compatibility and conversion to column types."""
