"""The search: which configuration to try next."""
