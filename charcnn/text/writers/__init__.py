"""Rows with labels, in the format in which they were read.

base.py, open.py                     `Writer`; the writer for what a reader reads
rows.py                              CSV, JSON Lines and plain lines: rows byte for byte, with more fields
render.py, lists.py                  the compiled way from rows and labels to bytes; several labels a row
parquet.py, parquet_footer.py        record batches with more columns; one footer for row groups written apart
"""
