"""Values ⇄ columns: bytes of a schema to typed columns and back, in machine code."""
