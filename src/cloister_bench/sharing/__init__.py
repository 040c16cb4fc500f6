"""What other tenants learn from the prefix cache, and what it saves, policy by policy (SafeKV §III and §VIII)."""
