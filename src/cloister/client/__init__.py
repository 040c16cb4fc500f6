"""What a user runs: verify a node, then speak to it through a sealed channel only. No part of the server is
imported."""
