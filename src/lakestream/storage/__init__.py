"""Object stores: buckets, local folders and memory, with retries and metrics around them."""
