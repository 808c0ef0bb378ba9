"""Runs outside a study: doctor, diagnosis, recording of tables."""
