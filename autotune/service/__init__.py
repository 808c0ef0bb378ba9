"""The daemon, submission to it, and following it: what outlives a command."""
