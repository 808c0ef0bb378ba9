"""Statistics of timed blocks: rates with intervals, and when a running trial may end."""
