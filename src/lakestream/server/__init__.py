"""Composition roots, which open the parts of a process in order and close them in reverse order."""
