"""Linear layers: a file a technique."""
