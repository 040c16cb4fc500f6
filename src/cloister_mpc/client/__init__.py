"""Whoever holds the prompt at the level `mpc`: reads it, deals it as shares, puts the answer together."""
