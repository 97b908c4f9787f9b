"""What operators share: shapes, launchers' arrays, number formats, casts, moments, threads."""
