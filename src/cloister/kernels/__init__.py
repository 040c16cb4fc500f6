"""The arithmetic of a decoder on one device, each row computed by itself in one fixed order.

`base` is the contract, `native` the C kernels, `reference` the plain torch twin. Kernels know tensors, packed weights
and the paged cache's layout; they know nothing of models, sequences or requests.
"""
