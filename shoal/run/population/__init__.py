"""Population-based training: its rules, its members, its files, and the search of anything that can be trained."""
