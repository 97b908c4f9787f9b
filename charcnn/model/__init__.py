"""Networks as data, and what follows from them."""
