"""As verifiers of evidence, those of releases fetch nothing."""

from tests.attest.conftest import nothing_is_fetched

__all__ = ["nothing_is_fetched"]
