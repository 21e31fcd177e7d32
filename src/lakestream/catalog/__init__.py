"""The Iceberg catalog: which table has which name, and which metadata file is current."""
