"""Mathematics shared by two or more systems: networks with a loss, and the agents that act with them."""
