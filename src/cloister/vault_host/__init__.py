"""The vault host (`cloister vault serve`): a sealed vault for each connection that proves the key, until it ends. No
prompt passes through its own process, but through the bridges (link.network)."""
