"""Maintains tables: merges small files, compacts by key, deletes expired rows, expires snapshots, removes orphan files.

    service.py          visits one table after the other; read this first
    plan.py             chooses the work: small_files.py, key_compaction.py, row_retention.py. Pure
    tasks.py            what a worker receives, and what it returns
    worker.py           in a worker: reads files and writes their replacements

The commits are in catalog/operations: rewrite_files.py, expire_snapshots.py, remove_orphan_files.py.
"""
