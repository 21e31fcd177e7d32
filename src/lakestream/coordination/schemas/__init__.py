"""The schema registry: which schemas there are, and what may become one. `registry.py` is the place to start."""
