"""Protection of the user's files: a trial of a script or a command reads them and writes none."""
