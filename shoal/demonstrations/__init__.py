"""Demonstrations: episodes of somebody else, read, recorded, and turned into streams of steps for a replay table."""
