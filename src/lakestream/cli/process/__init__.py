"""Worker processes, the pipeline's child process, signals."""
