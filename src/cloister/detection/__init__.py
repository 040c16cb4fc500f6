"""Which parts of a prompt are private: SafeKV's three tiers (Chu et al., §V-B).

    text → folding → tier 1 rules ┐
                   → tier 2 tagger ┴→ private | uncertain | public, block by block → tier 3 the serving model

Other packages use `pipeline.Pipeline`, which labels a text; the process around it (`python -m cloister.detection`);
`redaction`, which finds the secrets of a text; `judge`, tier 3; `signed_rules`, an operator's rule file; and
`known_prefixes`. These modules know no tree, tenant or HTTP. An error leaves a block private.
"""
