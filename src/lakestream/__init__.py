"""A lakestream: one stream, written once, that Kafka clients read as topics and engines read as Iceberg tables."""
