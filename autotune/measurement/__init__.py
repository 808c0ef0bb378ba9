"""From timed blocks to a figure with an interval, and when a running trial has told enough."""
