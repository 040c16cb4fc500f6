"""Evidence: what a node shows to clients, and how they check it. No hidden clock, no hidden network."""
