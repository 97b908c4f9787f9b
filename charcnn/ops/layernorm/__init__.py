"""LayerNorm over a whole map, alone and fused with ReLU and max-pooling."""
