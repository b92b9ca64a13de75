"""The command ``shoal``: words to calls."""
