"""Which promises hold at a running node: a ledger of optimisations and their threats, each with an attempt to break
what protects against it. An attempt asks as users, relays and neighbours ask, or as root on the node's machine."""
