"""`cloister bench mpc`: what generation on secret shares costs."""
