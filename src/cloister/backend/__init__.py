"""How the processes that speak HTTP see all computing: `Backend`, and the one over a socket to the controller."""
