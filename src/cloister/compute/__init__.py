"""The contracts of a device, and devices. They know tensors, weights and caches, not sequences or requests."""
