"""Evidence: what a node shows of itself, and how anyone checks it.

Verifiers take the time and everything else they need as arguments: no hidden clock, no hidden network. This package
knows nothing of servers, prompts or sessions.
"""
