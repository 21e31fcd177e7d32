"""Converts values with schemas into table columns and back, byte for byte, in compiled code."""
