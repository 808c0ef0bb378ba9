"""What runs beside the user's code. Imports the standard library, torch and itself, nothing else."""
