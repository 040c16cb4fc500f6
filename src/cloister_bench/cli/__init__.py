"""`cloister bench`: the measurements, with a progress bar, a table and a plot. Sibling packages measure."""

import typer

from cloister.cli.options import FriendlyGroup
from cloister_bench.cli.clients import bench_clients
from cloister_bench.cli.cloud import bench_cloud
from cloister_bench.cli.detection import bench_detection
from cloister_bench.cli.gpu import bench_gpu
from cloister_bench.cli.levels import bench_levels
from cloister_bench.cli.mpc import bench_mpc
from cloister_bench.cli.obfuscation import bench_obfuscation
from cloister_bench.cli.peers import bench_peers
from cloister_bench.cli.privacy import bench_privacy
from cloister_bench.cli.sharing import bench_sharing
from cloister_bench.cli.sharing_attack import bench_sharing_attack

bench = typer.Typer(
    cls=FriendlyGroup,
    no_args_is_help=True,
    add_completion=False,
    help="Measure servers: ours, or any that speaks OpenAI's API.",
)
bench.command("peers")(bench_peers)
bench.command("levels")(bench_levels)
bench.command("mpc")(bench_mpc)
bench.command("detection")(bench_detection)
bench.command("sharing")(bench_sharing)
bench.command("sharing-attack")(bench_sharing_attack)
bench.command("obfuscation")(bench_obfuscation)
bench.command("privacy")(bench_privacy)
bench.command("cloud")(bench_cloud)
bench.command("gpu")(bench_gpu)
bench.command("clients")(bench_clients)
