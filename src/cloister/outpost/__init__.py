"""Vaults on another machine: the outpost that keeps them there, and the controller's way to it.

An outpost has its own weights, fork server and cores, and no service: it forks one sealed vault for each server that
proves to know the key, per connection, and ends it with the connection. Its own process sees no prompt; the bridges
(link.network) do, on their way to a vault.
"""
