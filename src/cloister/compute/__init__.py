"""Where and how a decoder is computed: the contracts of a device, and the devices that fulfil them.

`base` is the contract, `layout` and `layer` are what is computed on. `cpu` is the C library, `gpu` CUDA kernels,
`reference` the same arithmetic in plain torch; `choose` picks one. Devices know tensors, packed weights and paged
caches. They do not know sequences, requests or where weights come from.
"""
