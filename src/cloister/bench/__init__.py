"""Measures servers from the outside, as a user's client would. Knows HTTP and clocks; nothing of engines or weights."""
