"""What `python -m charcnn.networks.NAME` does besides the network: options, images, tables."""
