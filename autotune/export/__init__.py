"""Files and settings that other tools and training jobs load."""
