"""How well detection tells private blocks from public ones, what `auto_redact` marks, and how long it takes."""
