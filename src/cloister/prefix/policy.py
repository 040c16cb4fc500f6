from dataclasses import dataclass

from cloister.levels import PolicyName


@dataclass(frozen=True, slots=True)
class Policy:
    """A salt narrows every policy: only requests with the same salt find each other, and nothing public.
    A request's mark `public` only permits its service to read a text: a tenant may mark a guess at another's words."""

    name: PolicyName
    reuses: bool = True
    everything_public: bool = False  # all tenants see all that is computed
    # all tenants see what the controller labels public; unlabelled pages are private (SafeKV §V-D). Usage reports a
    # tenant's own hits and registered ones; hits do not order public pages
    labelled_public: bool = False

    @property
    def sees_public(self) -> bool:
        return self.everything_public or self.labelled_public


POLICIES: dict[PolicyName, Policy] = {
    policy.name: policy
    for policy in (
        Policy("none", reuses=False),
        Policy("global", everything_public=True),
        Policy("partition"),
        Policy("registered", labelled_public=True),
        Policy("counted", labelled_public=True),
    )
}
