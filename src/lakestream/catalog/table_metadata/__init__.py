"""Iceberg table metadata as JSON: validate, apply updates, check requirements. Pure."""
