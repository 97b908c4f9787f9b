"""attention: softmax(q k^T / sqrt(d)) v, a file a technique."""
