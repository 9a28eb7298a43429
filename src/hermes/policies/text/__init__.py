"""Improving the texts around a model: a search by reflection, and the same gate as for weights."""
