import json

from cloister.bench.mpc.plan import Plan
from cloister.bench.mpc.results import Results
from tests.bench.mpc.fakes import cost, results


def test_a_run_has_the_fields_its_readers_rely_on() -> None:
    run = results().document()["runs"][0]
    expected = ["method", "protocol", "seq", "seconds", "megabytes", "messages", "lan_seconds", "wan_seconds"]
    assert list(run)[: len(expected)] == expected
    assert (run["method"], run["protocol"], run["seq"], run["megabytes"]) == ("full", "aby3", 1024, 300.0)
    assert run["wan_seconds"] > run["lan_seconds"] > run["seconds"]


def test_the_document_is_json_at_any_time() -> None:
    empty = Results(Plan(), "small").document()
    assert empty["runs"] == [] == empty["quality"]
    assert json.loads(json.dumps(results().document()))["operators"][0]["operator"] in ("dot", "less")


def test_operators_are_sorted_by_what_they_cost() -> None:
    found = Results(Plan(), "small")
    dear = cost(messages=9_000).operators["dot"]
    cheap = cost(messages=2)
    found.add_operators("mpcache", "step", 256, type(cheap)(cheap.whole, {"cheap": cheap.whole, "dear": dear}))
    assert [row["operator"] for row in found.operators] == ["dear", "cheap"]
