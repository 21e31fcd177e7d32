"""What distinguishes the table of a topic from other tables: columns, offsets, tag, layout, checks. Pure."""
