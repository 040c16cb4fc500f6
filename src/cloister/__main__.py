"""`python -m cloister` is `cloister`."""

from cloister.cli import app

if __name__ == "__main__":
    app(prog_name="cloister")
