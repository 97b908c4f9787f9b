"""Texts to labels: the classifier, the engine behind it, and what explains a label."""
