"""The vault host, which `cloister vault serve` runs on another machine than the service's. It forks one sealed vault
for each connection whose peer proves that it knows the key, and ends it with the connection. No prompt passes through
its own process, but through the bridges (link.network)."""
