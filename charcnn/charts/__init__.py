"""A page on this machine, and the pictures that it shares with the documents: SVG, drawn by code."""
