"""Convert the default model."""
