"""What vaults cost: Petridish's Figures 4–7 (§6) on this machine, over HTTP, by /metrics and, as root, by /proc."""
