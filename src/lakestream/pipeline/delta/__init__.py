"""Topics that want it (`lakestream.table.formats=iceberg,delta`) have a Delta table over the files of their Iceberg
table. `mirror.py` is the place to start; what it does to one table is in catalog/delta/.
"""
