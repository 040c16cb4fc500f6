"""Forks the service and all vaults, all imported, mapped and read. No user's data; one thread, as forks need."""
