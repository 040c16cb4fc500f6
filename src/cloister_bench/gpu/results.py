"""The document of `bench gpu`, its targets and its tables. Measures nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cloister.levels import ISOLATED, OBFUSCATED, OPEN, PARTITIONED
from cloister_bench.gpu.plan import DEFAULT_PROCESSES, Plan
from cloister_bench.gpu.shapes import LLAMA_3_8B, SHAPES, step_bytes
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Row, Table, Target, find, number, targets_table

ROWS = ("floor", "steps", "requests", "transformers", "breakdown", "variants", "memory", "not offered")
PHASES = (
    "q_projection",
    "kv_projection",
    "output_attention",
    "waiting_for_input_attention",
    "merge",
    "output_projection_and_mlp",
    "other",
)  # by the names of `bench spd`; `other`: norms, head and choice of a token
MEAN_ANSWERED = 40  # of an answer's tokens while steps are timed: what the floor counts beside the prompt


def _of_8b(document: Document, part: str, **having: Any) -> Row:
    return find(document[part], shape=LLAMA_3_8B, **having) or {}


def timed_steps(document: Document) -> list[Row]:
    """Those that are broken down into parts among them: they were measured the same way."""
    return [*document["steps"], *document["breakdown"]]


def _partitioned(document: Document, users: int, prompt: int) -> Row:
    having = {"users": users, "prompt": prompt, "processes": min(users, DEFAULT_PROCESSES)}
    return find(timed_steps(document), shape=LLAMA_3_8B, design=PARTITIONED, **having) or {}


def _step(users: int, prompt: int) -> Callable[[Document], float | None]:
    return lambda document: _partitioned(document, users, prompt).get("ratio")


def _request(prompt: int, answer: int) -> Callable[[Document], float | None]:
    having = {"users": 32, "prompt": prompt, "answer": answer, "processes": DEFAULT_PROCESSES}
    return lambda document: _of_8b(document, "requests", design=PARTITIONED, **having).get("ratio")


def _floor(users: int) -> Callable[[Document], float | None]:
    return lambda document: _of_8b(document, "steps", design=OPEN, users=users, prompt=64).get("to_floor")


def _generate(users: int) -> Callable[[Document], float | None]:
    """Over the better of generate's, compiled or not."""

    def measured(document: Document) -> float | None:
        load = {"shape": LLAMA_3_8B, "users": users, "prompt": 64, "answer": 64}
        theirs = [row["tokens_per_s"] for row in document["transformers"] if load.items() <= row.items()]
        ours = _of_8b(document, "requests", design=OPEN, users=users, prompt=64, answer=64).get("tokens_per_s")
        return ours / max(theirs) if ours and theirs else None

    return measured


def _obfuscated(users: int, lambda_: int) -> Callable[[Document], float | None]:
    return lambda document: _of_8b(document, "variants", users=users, **{"lambda": lambda_}).get("ratio")


def _memory(document: Document) -> float | None:
    return _of_8b(document, "memory", processes=DEFAULT_PROCESSES).get("mb")


TARGETS = (
    *(
        Target(f"partitioned over open, a step, {users} × 64", 1.05, _step(users, 64), "at most")
        for users in (1, 8, 32, 64)
    ),
    *(
        Target(f"partitioned over open, a step, {users} × 2,048", 1.08, _step(users, 2048), "at most")
        for users in (1, 8, 32, 64)
    ),
    Target("throughput of partitioned over open, 32 × 64/64", 0.85, _request(64, 64)),
    Target("throughput of partitioned over open, 32 × 512/128", 0.85, _request(512, 128)),
    Target("open over the floor, 1 user", 1.25, _floor(1), "at most"),
    Target("open over the floor, 8 users", 1.25, _floor(8), "at most"),
    Target("throughput of open over transformers' generate, 8 × 64/64", 1.5, _generate(8)),
    Target("throughput of open over transformers' generate, 32 × 64/64", 1.5, _generate(32)),
    Target("obfuscated, λ = 8, 8 users, over λ = 0", 1.08, _obfuscated(8, 8), "at most"),
    Target("obfuscated, λ = 64, 1 user, over λ = 0", 1.07, _obfuscated(1, 64), "at most"),
    Target("one of eight attention processes beside its users' KV, MB", 250.0, _memory, "at most"),
)


@dataclass
class Results(documents.Results):
    plan: Plan
    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # not begun for lack of time
    targets = TARGETS

    def add(self, row: Row) -> None:
        if row["part"] not in ROWS:
            raise ValueError("a row of no known part")
        if row not in self.rows:
            self.rows.append(row)

    def numbers(self) -> Document:
        found: Document = {part.replace(" ", "_"): [] for part in ROWS}
        rate = next((row["bytes_per_second"] for row in self.rows if row["part"] == "floor"), None)
        for row in self.rows:
            plain = {name: value for name, value in row.items() if name != "part"}
            found[row["part"].replace(" ", "_")].append(_rounded(_beside_the_floor(plain, rate)))
        return found

    def remarks(self) -> Document:
        return {"left_out": self.left_out, "seconds": round(self.seconds, 1)}


def _beside_the_floor(row: Row, rate: float | None) -> Row:
    """How long a step's bytes alone take, at the bandwidth of a copy in the same run."""
    if rate is None or "ms" not in row or row.get("design") == ISOLATED:
        return row
    floor = step_bytes(SHAPES[row["shape"]], row["users"], row["prompt"] + MEAN_ANSWERED) / rate * 1e3
    return {**row, "floor_ms": floor, "to_floor": row["ms"] / floor}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return round(value, 4) if isinstance(value, float) and value < 1e9 else value


def judged(document: Document) -> Document:
    return {**document, "targets": [target.verdict(document) for target in TARGETS]}


def tables(document: Document) -> list[Table]:
    shapes = dict.fromkeys(row["shape"] for row in document["steps"])
    found = [_steps(document, shape) for shape in shapes]
    found += [_requests(document), _variants(document), _breakdown(document)]
    return [*found, targets_table(document["targets"])]


def _steps(document: Document, shape: str) -> Table:
    mine = [row for row in timed_steps(document) if row["shape"] == shape]
    rows = []
    for users, prompt in dict.fromkeys((row["users"], row["prompt"]) for row in mine):
        here = [row for row in mine if (row["users"], row["prompt"]) == (users, prompt)]
        beside = find(here, design=OPEN) or {}
        asked = {row["processes"]: row["ratio"] for row in here if row["design"] == PARTITIONED}
        default, one = (asked.get(min(users, count)) for count in (DEFAULT_PROCESSES, 1))
        each = asked.get(users)
        alone = (find(here, design=ISOLATED) or {}).get("ratio")
        same = [row["same_bits"] for row in here if "same_bits" in row]
        numbers = (beside.get("ms"), beside.get("to_floor"), default, one, each, alone)
        bits = "" if not same else "the same" if all(same) else "OTHERS"
        rows.append([f"{users} × {prompt}", *map(number, numbers), bits])
    heads = ("users × prompt", "open, ms", "to the floor", "partitioned: 8", "1", "one each", ISOLATED, "bits")
    return Table(f"{shape}: a decode step, over open's", heads, rows, caption=_captions(document, shape))


def _captions(document: Document, shape: str) -> str | None:
    said = dict.fromkeys(
        f"{row['what']}: not offered ({row['reason']})" for row in document["not_offered"] if row["shape"] == shape
    )
    return "; ".join(said) or None


def _requests(document: Document) -> Table:
    rows = []
    for row in (*document["requests"], *document["transformers"]):
        design = row["design"] + _processes(row)
        load = f"{row['users']} × {row['prompt']}/{row['answer']}"
        rows.append([row["shape"], load, design, *map(number, (row["tokens_per_s"], row.get("ratio"), row["ttft_ms"]))])
    heads = ("shape", "load", "design", "tokens/s", "of open's", "first token, ms")
    return Table("Whole requests, without HTTP", heads, rows, labels=3)


def _variants(document: Document) -> Table:
    rows = []
    for row in document["variants"]:
        bits = "the same" if row["same_bits"] else "OTHERS"
        count = row["users"] * (row["lambda"] + 1)
        numbers = map(number, (row["ms"], row["ratio"]))
        rows.append([row["shape"], str(row["users"]), str(row["lambda"]), str(count), *numbers, bits])
    heads = ("shape", "users", "λ", "rows", "ms", "over λ = 0", "bits")
    return Table(f"A decode step of {OBFUSCATED}", heads, rows)


def _processes(row: Row) -> str:
    count = row["processes"] if row["design"] == PARTITIONED else 0
    return f", {count} process{'es' if count > 1 else ''}" if count else ""


def bar_name(row: Row) -> str:
    return f"{row['design']}{_processes(row)}, {row['users']} users"


def _breakdown(document: Document) -> Table:
    bars = document["breakdown"]
    rows = [[name.replace("_", " "), *(f"{bar['phases_ms'][name]:.3f}" for bar in bars)] for name in PHASES]
    rows += [["whole step", *(f"{bar['ms']:.3f}" for bar in bars)]]
    return Table("Where a step goes, ms", ("", *map(bar_name, bars)), rows if bars else [])


def phases(us: Mapping[str, float], layers: int, queries: float, step_ms: float, *, asks: bool) -> dict[str, float]:
    """Figure 7 in ms, of kernels timed alone; merging counts as waiting. `queries`: the share of Q in Q, K and V."""
    ms = layers / 1e3
    parts = dict.fromkeys(PHASES, 0.0)
    parts["q_projection"] = us["qkv"] * queries * ms
    parts["kv_projection"] = (us["qkv"] * (1 - queries) + us["rotate"]) * ms
    parts["output_attention"] = us["attend"] * ms
    parts["output_projection_and_mlp"] = (us["out"] + us["gate_up"] + us["down"]) * ms
    parts["other"] = 2 * us["norm"] * ms + (us["head"] + us["greatest"]) / 1e3
    rest = step_ms - sum(parts.values())
    parts["waiting_for_input_attention" if asks else "other"] += max(0.0, rest)
    return parts
