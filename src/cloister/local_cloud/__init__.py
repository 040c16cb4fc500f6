"""A whole cloud on one machine, to try it: nodes in network namespaces, relay, issuer and proxy."""
