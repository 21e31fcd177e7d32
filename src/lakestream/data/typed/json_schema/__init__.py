"""JSON Schema validation at produce, in a process of its own."""
