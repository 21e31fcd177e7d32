"""The write-ahead log: buffers batches, stores them as frames in objects or segment files, and reads them."""
