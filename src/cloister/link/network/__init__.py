"""The link's network sibling: a vault on another machine, behind an authenticated and encrypted connection.

The service knows shared memory alone. Beside it a near bridge plays the vault on a local link; beside the vault a far
bridge plays the service; between the two travel sealed records (`secure`). docs/network-link.md tells the whole story.
"""
