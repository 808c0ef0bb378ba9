"""The agent's side of a trial: one process per node that starts, watches and reaps ranks."""
