"""Which parts of a prompt are private: SafeKV's three tiers (Chu et al., §V-B). An error leaves a block private."""
