"""`cloister bench mpc`: what generation on secret shares costs, and what a small cache costs in quality."""
