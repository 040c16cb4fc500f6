"""A vault's link over a network: shared memory at both ends, mutual TLS 1.3 between them.

The service knows shared memory only. Beside it, a server bridge acts as the vault on a local link; beside the vault, a
vault bridge acts as the service. docs/network-link.md has the picture.
"""
