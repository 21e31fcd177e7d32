"""Bytes to requests and responses and back, around kio."""
