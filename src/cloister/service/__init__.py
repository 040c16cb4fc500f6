"""The process that owns the model and decodes for everybody: token ids in, token ids out. No HTTP, text or keys."""
