"""The Avro codec."""
