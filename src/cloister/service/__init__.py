"""The process that decodes for all tenants: token ids in, token ids out. No HTTP, text or keys."""
