"""A plan as tables, JSON and a figure."""

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from cloister_bench.capacity.simulation import Results
from cloister_bench.suite.documents import Document, Drawing, Panel, Row, Table, charts, number

POINTS = 60
_GIB = 1 << 30


def document_of(report: Document, found: Results) -> Document:
    """With the curve of first tokens: which share came within how many seconds."""
    model = report["machine"]["model"]
    return {**report, "model": model, "curve": _curve(found), "title": f"{report['nodes']} nodes"}


def _curve(found: Results) -> list[Row]:
    ordered = sorted(found.first_s)
    if not ordered:
        return []
    low, high = max(ordered[0], 1e-3), max(ordered[-1], 2e-3)
    places = [low * (high / low) ** (step / POINTS) for step in range(POINTS + 1)]
    return [
        {
            "seconds": round(place, 4),
            "share": round(bisect_right(ordered, place * 1.0001) / len(ordered), 5),
            "of": "all",
        }
        for place in places
    ]


_SAID: Mapping[str, tuple[str, str]] = {
    "nodes": ("nodes", ""),
    "away": ("of them away all the time", ""),
    "requests_per_s": ("requests", "a second"),
    "first_p50_s": ("first token, median", "s"),
    "first_p99_s": ("first token, 99th percentile", "s"),
    "answer_p50_s": ("whole answer, median", "s"),
    "output_tokens_per_s": ("tokens of answers", "a second"),
    "busy": ("nodes compute, on average", "of the time"),
    "busiest": ("the busiest node computes", "of the time"),
    "vault_starts_per_node_and_s": ("vaults started by a node", "a second"),
    "mean_wait_for_vault_s": ("wait for a vault, mean", "s"),
    "most_vaults_of_a_node": ("vaults of the fullest node", "at once"),
    "redeemed_per_node_and_s": ("tokens redeemed by a node", "a second"),
    "issuer_cores": ("cores of issuers", ""),
    "retried": ("requests sent again elsewhere", ""),
    "node_gib": ("memory of the fullest node", "GiB"),
    "price_per_hour": ("price", "an hour"),
    "price_per_1000_requests": ("price of 1,000 requests", ""),
}


def tables(document: Document) -> list[Table]:
    bytes_of_node = document["node_bytes"]
    shown: dict[str, Any] = {**document, "node_gib": None if bytes_of_node is None else bytes_of_node / _GIB}
    rows = [(text, number(shown[key]), unit) for key, (text, unit) in _SAID.items() if shown[key] is not None]
    failed = {name: count for name, count in document["outcomes"].items() if name != "answered"}
    rows += [(f"ended as {name}", number(count), "requests") for name, count in failed.items()]
    about = document["machine"]
    title = f"{about['model']} on {about['processor']}, measured {about['measured']}; trace {document['trace']['name']}"
    return [Table(title, ("", "", ""), rows)]


def check_table(document: Document) -> Table:
    rows = [
        (row["name"], number(row["real"]), number(row["simulated"]), f"{row['ratio']:.2f}") for row in document["rows"]
    ]
    title = f"{document['nodes']} real nodes, {document['requests']} requests at {document['level']}, in seconds"
    return Table(title, ("", "measured", "simulated", "ratio"), rows)


FIGURES: Mapping[str, Drawing] = {
    "plan": charts(
        lambda document: document["curve"],
        "share of first tokens within",
        Panel("seconds", "share", "of", "", labels={"xlabel": "seconds", "ylabel": "share"}),
    )
}
