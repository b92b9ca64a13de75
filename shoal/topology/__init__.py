"""Configurations, channels and roles that several systems share, and how they are wired into programs."""
