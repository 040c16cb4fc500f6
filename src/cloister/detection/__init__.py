"""Which parts of a prompt are private: SafeKV's tiers 1 and 2 (Chu et al., §V-B). An error leaves a block private."""
