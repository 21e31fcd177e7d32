"""JSON Schema: read, compared, and turned into columns. The same words describe the shape of JSON without a schema."""
