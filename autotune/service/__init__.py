"""What lives longer than a command: the daemon, how a study gets to it, how one follows it."""
