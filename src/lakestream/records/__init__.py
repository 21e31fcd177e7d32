"""Kafka record batches as bytes: header, compression, checksum and their regions in files."""
