"""Make sure that the default model is there, converted and whole: the last step of `make setup`."""

import sys

from cloister.errors import CloisterError
from cloister.models.source import find_model

if __name__ == "__main__":
    try:
        find_model(None)
    except CloisterError as failure:
        sys.exit(str(failure))
    except KeyboardInterrupt:
        sys.exit(130)  # set-up prints that it was stopped
