"""Where and how a decoder is computed: the contracts of a device, and the devices that fulfil them.

`base` is the contract (kernels, cache, both ends of a link), `layout` and `layer` are what is computed on. `cpu` is the
C library, `reference` the plain torch twin; `choose` alone picks between them. Devices know tensors, packed weights and
paged caches; they know nothing of sequences, requests or where weights come from.
"""
