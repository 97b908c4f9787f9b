"""Pictures as rows of bytes, which networks of images read: files, data sets, and ten drawn by code.

    from charcnn import images
    images.read("photographs", (3, 224, 224), resize=256).rows      # uint8 (N, 150528)
    images.fashion_mnist("test").check_labels(10)

Bright and dark stay as they are: nothing guesses which is the background. Fashion-MNIST, MNIST, scikit-learn's digits
and `sample` are bright on black, so a network of these reads ink on paper only after `Images.inverted`.
"""

from charcnn.images.datasets import FASHION_CLASSES, digits, fashion_mnist, mnist
from charcnn.images.drawn import sample
from charcnn.images.reading import read
from charcnn.images.rows import Images

__all__ = ["FASHION_CLASSES", "Images", "digits", "fashion_mnist", "mnist", "read", "sample"]
