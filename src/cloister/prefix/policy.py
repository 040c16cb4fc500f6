"""The policies of sharing, as data (SafeKV §VII-C compares them)."""

from __future__ import annotations

from dataclasses import dataclass

from cloister.levels import PolicyName


@dataclass(frozen=True, slots=True)
class Policy:
    """A salt narrows every policy: only requests with the same salt find each other, they publish nothing, and they
    find nothing public. A request's mark `public` permits its service to read a text. No policy shows the text to
    other tenants for that mark, since a tenant may mark a guess at another tenant's words."""

    name: PolicyName
    reuses: bool = True
    everything_public: bool = False
    """Whether all tenants see all that is computed."""
    labelled_public: bool = False
    """Whether all tenants see what a detector labels public; unlabelled pages are private (SafeKV §V-D)."""

    @property
    def sees_public(self) -> bool:
        return self.everything_public or self.labelled_public


POLICIES: dict[PolicyName, Policy] = {
    policy.name: policy
    for policy in (
        Policy("none", reuses=False),
        Policy("global", everything_public=True),
        Policy("partition"),
        Policy("safekv", labelled_public=True),
    )
}
