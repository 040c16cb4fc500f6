"""Vaults on another machine than the service: the vault host, which `cloister vault serve` runs there.

A vault host has its own weights, fork server and cores, and no service. It forks one sealed vault for each connection
whose peer proves that it knows the key, and ends the vault with the connection. No prompt passes through its own
process; prompts pass through the bridges (link.network), on their way to a vault.
"""
