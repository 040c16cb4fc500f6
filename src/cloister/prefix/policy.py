"""The policies of sharing, as data (SafeKV §VII-C compares them): who finds what, and what becomes visible to all."""

from __future__ import annotations

from dataclasses import dataclass

from cloister.levels import PolicyName


@dataclass(frozen=True, slots=True)
class Policy:
    """One row. A salt narrows every policy: with one, only requests of the same salt find each other, nothing is made
    public, and nothing public is found. What a request marks as public is for its service to read: no policy shows it
    to other tenants, since a mark may be on a guess at another tenant's words."""

    name: PolicyName
    told: str
    reuses: bool = True
    everything_public: bool = False
    """Whether whatever is computed is visible to all."""
    labelled_public: bool = False
    """Whether what a detector calls public is; until it does, all is private (SafeKV §V-D)."""

    @property
    def sees_public(self) -> bool:
        return self.everything_public or self.labelled_public


POLICIES: dict[PolicyName, Policy] = {
    policy.name: policy
    for policy in (
        Policy("none", "every prompt is computed anew; nothing is kept", reuses=False),
        Policy("global", "everybody finds everybody's prompts: others can time what you wrote", everything_public=True),
        Policy("partition", "a tenant finds its own prompts and nobody else's"),
        Policy(
            "safekv", "as partition; what a detector finds nothing private in is found by all", labelled_public=True
        ),
    )
}
