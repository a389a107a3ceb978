"""Adapters: models that were not written as lists of layers become models that can be cut into stages."""
