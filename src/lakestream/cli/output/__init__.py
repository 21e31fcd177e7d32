"""Input and output formats of commands."""
