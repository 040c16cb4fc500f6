"""Which real clients do what at which level: each with its packages alone, against a running server."""
