"""Records any agent: a gateway between an agent and its model, which makes trajectories of its calls."""
