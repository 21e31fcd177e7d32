"""What the table costs."""
