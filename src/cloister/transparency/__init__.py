"""Which software a node may run, told to everyone: release manifests in a log that cannot take anything back."""
