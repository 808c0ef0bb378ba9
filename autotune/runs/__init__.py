"""One run: from a study's settings to a request, and what comes of it."""
