"""Schemas of values and keys: parsing, compatibility and conversion to column types. Pure."""
