"""What other tools and training jobs load."""
