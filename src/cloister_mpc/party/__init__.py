"""One party: its process, the engine that computes on shares, the tunnel between engines, sessions and weights."""
