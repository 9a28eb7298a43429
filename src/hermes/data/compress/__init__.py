"""Fitting trajectories to a token budget: tool outputs fold first, decisions and instructions go last."""
