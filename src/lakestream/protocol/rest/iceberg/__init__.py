"""The Iceberg REST catalog API."""
