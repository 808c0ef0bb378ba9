"""The agent's side of a trial: one process per node that starts ranks, watches and clears them away."""
