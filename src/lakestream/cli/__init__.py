"""Sub-commands of the command `lakestream`."""
