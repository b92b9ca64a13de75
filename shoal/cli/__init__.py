"""The command line ``shoal``: from its words to calls."""
