"""How fast, against what: each benchmark measures us beside a bare peer in the same run."""
