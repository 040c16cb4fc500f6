"""A decoder in JAX, for shares and for plain numbers, and the programs compiled from it."""
