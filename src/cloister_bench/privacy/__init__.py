"""What our best attackers get at every level, each beside a control that must succeed."""
