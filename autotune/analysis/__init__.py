"""What the records say. Pure functions."""
