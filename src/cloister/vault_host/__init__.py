"""Vaults on a machine of their own: the vault host, which `cloister vault serve` runs there.

A vault host has its own weights, fork server and cores, and no service. It forks one sealed vault for each connection
whose peer proves to know the key, and ends it with the connection. Its own process sees no prompt; the bridges
(link.network) do, on their way to a vault.
"""
