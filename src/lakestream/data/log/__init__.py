"""The partition log: appends, reads, waits and trims batches; claims assign offsets. Read log.py first."""
