"""softmax: logits to probabilities; a file a technique."""
