"""What systems share of a program: configurations, channels, and roles wired in the same way."""
