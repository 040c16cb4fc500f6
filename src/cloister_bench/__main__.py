"""`python -m cloister_bench` is `cloister bench`, also where this distribution is on the path but not installed."""

from cloister_bench.cli import bench

if __name__ == "__main__":
    bench(prog_name="cloister bench")
