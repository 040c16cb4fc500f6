"""The sandbox of every vault and the service: kernel layers that a process applies to itself
(docs/adr/0004-sandbox.md): `namespaces`, then powers, threads, and `seal.seal`."""
