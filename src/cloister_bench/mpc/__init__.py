"""`cloister bench mpc`: what generation on secret shares costs, by method, length, protocol and operator."""
