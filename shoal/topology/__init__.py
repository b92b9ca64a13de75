"""Configurations, channels and roles that systems share, and functions that connect them to programs."""
