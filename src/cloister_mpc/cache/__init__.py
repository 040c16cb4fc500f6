"""How a generation keeps and reads its KV cache: pure JAX, for secret shares and for plain numbers."""
