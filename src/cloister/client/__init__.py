"""What a user runs: verify a node, then seal requests to it. No part of the server is imported."""
