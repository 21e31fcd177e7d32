"""Load generators: `python -m benchmarks.kafka.load TASK`, processes of their own, whose CPU is not measured.

A task is JSON (tasks.py). The process connects, prints `ready`, waits for a line of input, runs the load, prints its
result as one line, and keeps its connections until its input is closed.
"""
