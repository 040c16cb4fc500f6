"""Which software a node may run, in public: release manifests in an append-only log."""
