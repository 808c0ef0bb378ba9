"""A run: its request from a study's settings, its monitor and its result."""
