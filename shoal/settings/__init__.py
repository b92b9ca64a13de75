"""From the words of a user to checked values: layers of configuration, flags, ranges."""
