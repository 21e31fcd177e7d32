"""Checks of commits by clients: paths, added files, rows with offsets."""
