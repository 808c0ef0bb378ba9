"""Knobs, an entry each, by where they act."""
