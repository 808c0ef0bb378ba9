"""Findings from the records of a study: gate, confirmation, ablation, verdict. Pure functions."""
