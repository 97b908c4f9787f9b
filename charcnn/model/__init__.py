"""The network: its parameters, files, reference, calibration, and how far results may be off."""
