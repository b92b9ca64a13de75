"""What systems share of learning: algorithm, gradient step, learners, agents."""
