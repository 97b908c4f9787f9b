"""Texts in, labels out, at the speed of the network: readers, what runs beside what, and files that survive a kill.

A reader gives blocks of rows; a row is never a Python object. Its texts lie one after the other in a buffer, as in
an Arrow array, and `encodings.encode_buffer` turns that into token ids. `runtime.ordered` lets one thread read and
scan, several encode, compute and render, and one write.

    base.py, open.py, formats.py     blocks, `Reader`; the reader of a file; formats
    source.py, compressed.py         the bytes of a file or of standard input; those that a .gz or .zst file holds
    csv.py, jsonl.py, lines.py, parquet.py   rows to texts
    scan.py, json_scan.py            compiled scanners
"""
