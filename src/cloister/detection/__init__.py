"""Which parts of a prompt may be shared between tenants: SafeKV's three tiers (Chu et al., §V-B).

    text → folding → tier 1 rules ┐
                   → tier 2 tagger ┴→ private | uncertain | public, block by block → tier 3 the serving model

Knows text and labels; knows no tree, no tenant and no socket. Whatever fails here leaves a block private.
"""
