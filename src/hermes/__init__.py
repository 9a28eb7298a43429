"""Hermes: an agent whose every run becomes training data, and the pipeline that trains on it."""

__version__ = "0.1.0"
