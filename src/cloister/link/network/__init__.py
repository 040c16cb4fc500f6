"""A vault's link over a network: shared memory at both ends, mutual TLS 1.3 between them (docs/network-link.md)."""
