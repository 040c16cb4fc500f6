"""Evidence: what a node shows to clients, and how they check it. Verifiers take the time and all other inputs as
arguments: no hidden clock, no hidden network."""
