"""What keeps tables in order: small files merged, old rows and superseded ones gone, snapshots and orphans removed.

maintain.py                       one look after another at each table; read this first
merging.py compacting.py rows.py  what to do now: pure, from the table's files, its settings and the clock
tasks.py                          what a worker is asked, and what it answers
work.py, newest.py                in a worker: files are read and written anew
catalog/rewrite.py, expire.py, orphans.py   the commits, and what is removed after them
"""
