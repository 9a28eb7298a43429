"""Sessions that coding agents left on disk, as trajectories: one reader for each client, one way into the store."""
