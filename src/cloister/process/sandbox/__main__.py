"""`python -m cloister.process.sandbox`: which layers this machine offers, as JSON."""

import json
from dataclasses import asdict

from cloister.process.sandbox.seal import available_layers

if __name__ == "__main__":
    print(json.dumps(asdict(available_layers()), indent=2))
