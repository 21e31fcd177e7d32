"""JSON Schema: parsing, compatibility and conversion to column types, also for inferred shapes of JSON."""
