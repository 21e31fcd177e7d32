"""Settings and the parsers of their values."""
