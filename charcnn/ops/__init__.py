"""The operators: plain references, and launchers of every technique."""
