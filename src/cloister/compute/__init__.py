"""Where and how a decoder is computed: the contracts of a device, and the devices that fulfil them.
Devices know tensors, packed weights and paged caches; no sequences, no requests, not where weights come from."""
