"""Texts in, labels out, at the speed of the network: readers, what runs beside what, and files that survive a kill.

A reader gives blocks of rows; a row is never a Python object. Its texts lie one after the other in a buffer, as in
an Arrow array, and `charcnn.text.encodings.encode_buffer` turns that into token ids. `flow.ordered` lets one thread read and
scan, several encode, compute and render, and one write.

    scan.py       compiled scanners of CSV and lines, and the way back to bytes
    json_scan.py  likewise, of JSON Lines
    column.py     texts in memory: lists, NumPy, Arrow, pandas
    source.py     the bytes of a file or of standard input
    kinds.py      CSV, lines, JSON Lines and Parquet: rows to texts, and rows with labels
    flow.py       threads and bounded queues
    output.py     a file that appears when it is whole, and that a second start goes on with
"""
