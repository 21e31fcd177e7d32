"""The load generators: `python -m benchmarks.kafka.load TASK`, so that their CPU is not the server's.

A task is JSON (tasks.py). The process connects, says `ready`, waits for a line, does its work, tells on one line what
came of it, and keeps its connections until its input is closed.
"""
