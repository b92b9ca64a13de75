"""Roles: what runs in a process. They see the world through their ports only."""
