"""Texts in, labels out, at the speed of the network: readers, what runs beside what, and files that survive a kill.

A reader gives blocks of rows; a row is never a Python object. Its texts lie one after the other in a buffer, as in
an Arrow array, and `encodings.encode_buffer` turns that into token ids. `runtime.ordered` lets one thread read and
scan, several encode, compute and render, and one write.

    scan.py            compiled scanners of CSV and lines, and the way back to bytes
    json_scan.py       likewise, of JSON Lines
    source.py          the bytes of a file or of standard input
    compressed.py      the bytes that a .gz or .zst file holds
    base.py            what readers share: a block of rows, `Reader`, `Writer`
    csv.py             rows to texts, and rows with labels; likewise jsonl.py, lines.py and parquet.py
    parquet_footer.py  row groups that are written apart, and one footer for all of them
    formats.py         which there are, and the one that a file's name shows
    open.py            the reader of a file
"""
