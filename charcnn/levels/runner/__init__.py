"""What `python -m charcnn.levels.lK` does besides the level: options, ranks, checks, reports."""
