"""Code that runs beside the user's code. It imports the standard library and torch only."""
