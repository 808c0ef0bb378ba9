"""Texts and pages for people: progress, report, notes, dashboard."""
