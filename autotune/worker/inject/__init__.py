"""Knobs and measurement in a training script that is not modified."""
