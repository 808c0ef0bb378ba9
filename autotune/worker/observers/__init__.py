"""Observers of a running trial. An observer costs nothing inside a timed step."""
