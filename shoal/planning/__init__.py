"""``shoal plan``: what a system costs here, and how fast it would be with more actors, learners or machines."""
