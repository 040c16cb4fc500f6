"""What a generation keeps of its past and how it reads it: pure JAX, alike on secret shares and on plain numbers."""
