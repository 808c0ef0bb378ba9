"""One study, from its first question to its verdict: the tuner and what it asks."""
