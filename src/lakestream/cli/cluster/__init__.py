"""Commands that show a running cluster: its groups, what its topics and tables have, and what is wrong."""
