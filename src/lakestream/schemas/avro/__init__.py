"""Avro's schemas: read, compared, and turned into shapes."""
