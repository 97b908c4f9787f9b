"""Texts in, labels out, at the speed of the network: readers, what runs beside what, and files that survive a kill.

A reader gives blocks of rows; a row is never a Python object. Its texts lie one after the other in a buffer, as in
an Arrow array, and `encodings.encode_buffer` turns that into token ids. `runtime.ordered` lets one thread read and
scan, several encode, compute and render, and one write.

    scan.py       compiled scanners of CSV and lines, and the way back to bytes
    json_scan.py  likewise, of JSON Lines
    source.py     the bytes of a file or of standard input
    kinds.py      CSV, lines, JSON Lines and Parquet: rows to texts, and rows with labels
"""
