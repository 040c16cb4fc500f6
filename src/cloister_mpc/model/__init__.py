"""What is computed: a decoder in JAX, alike on shares and on plain numbers, and the programs compiled from it."""
