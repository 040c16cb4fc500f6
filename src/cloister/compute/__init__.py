"""Where and how a decoder is computed: the contracts of a device, and the devices that fulfil them.

`base` is the contract, `layout` and `layer` are what is computed on. `cpu` is the C library, `reference` its twin in
plain torch; only `choose` picks between them. Devices know tensors, packed weights and paged caches; they know nothing
of sequences, requests or where weights come from.
"""
