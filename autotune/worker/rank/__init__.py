"""The rank's side of a trial: one process that trains, timed, traced or step by step."""
