"""Knobs and measurement in a training script that nobody has changed."""
