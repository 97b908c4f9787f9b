"""conv1d of seven taps, ReLU and max-pooling of 3 by 11 products a window where direct sums take 21. See README.md."""
