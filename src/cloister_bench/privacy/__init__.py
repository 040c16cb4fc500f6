"""What our best attacker gets at each level, beside a baseline that must succeed."""
