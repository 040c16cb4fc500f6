"""Reuse of computed prefixes (SafeKV, §V and §VI). No text, no levels. The engine uses `base` alone."""
