"""Runtimes launch programs. The only place with processes, shared memory, files and clocks."""
