"""`cloister bench clients`: which real clients do what at which level."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from cloister.cli.options import settings_command
from cloister.config import option
from cloister_bench.cli.suite import Bars, Output, known_names, measure_suite, raise_if_failed


class ClientsOptions(Output):
    server: str | None = option(None, "A running server.", show_default="one is started", metavar="URL")
    api_key: str | None = option(None, "Its key.", show_default="the development key")
    model: str | None = option(None, "Model of the server started here.", show_default="SmolLM2-135M-Instruct")
    clients: str | None = option(None, "Of the clients these, with commas between them.", show_default="all")
    levels: str | None = option(None, "Of the server's levels these.", show_default="all")
    features: str | None = option(None, "Of the features these.", show_default="all")
    environments: Path | None = option(
        None, "Install the clients' packages here, and keep them.", show_default="a temporary folder", metavar="DIR"
    )
    page: Path | None = option(None, "Write the table here as Markdown.", metavar="FILE")


@settings_command(ClientsOptions)
def bench_clients(options: ClientsOptions) -> None:
    """Try every feature of OpenAI's API with real clients, each with its own pinned packages, at every level.

    Packages are installed with pip and npm. A feature works if the client accepts the answer and its form is right.

    Examples:

      cloister bench clients --environments clients --json clients.json --plot-dir plots

      cloister bench clients --clients "litellm,instructor" --levels open,partitioned
    """
    from cloister.addresses import HttpAddress
    from cloister.config import DEVELOPMENT_KEY
    from cloister_bench.clients.client import CLIENTS, FEATURES
    from cloister_bench.clients.table import FIGURES, Cells, Plan, Trial, page, tables
    from cloister_bench.servers import OwnServer, Server

    names = known_names(options.clients or ",".join(each.name for each in CLIENTS), "client", [c.name for c in CLIENTS])
    features = known_names(options.features or ",".join(FEATURES), "feature", FEATURES)
    results = Cells(Plan(names, (), features), "")

    def run(server: Server, folder: Path, bars: Bars, save: Callable[[], None]) -> None:
        server.wait()
        levels = known_names(options.levels or ",".join(server.levels), "level", server.levels)
        results.plan, results.model = Plan(names, levels, features), server.model
        Trial(results, bars, save).run(server, tuple(each for each in CLIENTS if each.name in names), folder)

    def measure(bars: Bars, save: Callable[[], None]) -> None:
        with TemporaryDirectory() as temporary:
            folder = (options.environments or Path(temporary)).absolute()
            folder.mkdir(parents=True, exist_ok=True)
            if options.server:
                run(
                    Server("server", HttpAddress.parse(options.server), options.api_key or DEVELOPMENT_KEY),
                    folder,
                    bars,
                    save,
                )
            else:
                with OwnServer(options.model, folder) as server:
                    run(server, folder, bars, save)

    document = measure_suite(results, measure, options, tables, FIGURES)
    if options.page:
        options.page.write_text(page(document))
    raise_if_failed(results)
