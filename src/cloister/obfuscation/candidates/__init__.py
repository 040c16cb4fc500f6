"""Values that exist, by category: what could stand in a secret's place."""
