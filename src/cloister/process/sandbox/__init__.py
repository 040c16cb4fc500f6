"""The sandbox of vaults and service, which each applies to itself (docs/adr/0004-sandbox.md): `namespaces` … `seal`."""
