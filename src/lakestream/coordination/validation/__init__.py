"""Schema validation at produce (`reject`)."""
