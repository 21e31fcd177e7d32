"""The schema registry: registers, looks up and deletes schemas. Read registry.py first."""
