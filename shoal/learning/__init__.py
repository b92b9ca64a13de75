"""The learning code that several systems share: algorithms, gradient steps, learners, agents."""
