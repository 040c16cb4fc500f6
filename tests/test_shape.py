"""The size and shape of the house: small files, short functions, no circle of imports, docs that a user finishes."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.sources import tree_of

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
MOST_LINES = {"cloister": 45_000, "*": 60_000}  # of the product, and of all distributions together (issue 34)
GRANTED = {"cloister": 14_000, "*": 19_600}
"""For what was built since: relay, tokens, issuer, node choice; private layers, recitations, lone answers; the audit,
profiles, drain, configuration files; TLS, usage, a local cloud, the page's audit; capacity; their benches;
forms, tools, responses, embeddings, the table of clients; queries compared on a GPU; vLLM as an engine; the search of
disks and journals."""
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 80
MOST_PARAMETERS = 10
MOST_WORDS_OF_DOCS = 20_000

FILES = sorted(SOURCE.rglob("*.py"))


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def functions_of(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def parameters_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return len([one for one in every if one.arg not in ("self", "cls")])


def too_large(path: Path) -> list[str]:
    """The file, and those of its functions that are."""
    found = [] if lines_of(path) <= MOST_LINES_OF_A_FILE else [str(path.relative_to(SOURCE))]
    for function in functions_of(tree_of(path)):
        long = (function.end_lineno or 0) - function.lineno + 1 > MOST_LINES_OF_A_FUNCTION
        if long or parameters_of(function) > MOST_PARAMETERS:
            found.append(f"{path.relative_to(SOURCE)}: {function.name}")
    return found


def test_files_and_functions_are_small() -> None:
    assert len(FILES) > 400 and not [each for path in FILES for each in too_large(path)]


def test_the_sources_are_few() -> None:
    counted = {folder.name: sum(map(lines_of, folder.rglob("*.py"))) for folder in SOURCE.iterdir() if folder.is_dir()}
    counted["*"] = sum(counted.values())
    assert all(counted[each] <= MOST_LINES[each] + GRANTED[each] for each in MOST_LINES), counted


def imported_files(path: Path) -> set[str]:
    """Modules of ours that this file imports, at the top, inside functions and for the type checker."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {
                whole if (whole := f"{node.module}.{name.name}") in MODULES else node.module for name in node.names
            }
    return found & set(MODULES)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


def circle_in(imports: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as found:
        return list(found.args[1])
    return []


def test_no_circle_of_imports_between_files() -> None:
    assert not circle_in({name: imported_files(path) - {name} for name, path in MODULES.items()})


def test_a_circle_would_be_found() -> None:
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}}) and not circle_in({"a": {"b"}, "b": set()})


def test_a_user_finishes_the_docs() -> None:
    documents = [ROOT / "README.md", *(path for path in (ROOT / "docs").rglob("*.md") if "archive" not in path.parts)]
    words = {str(path.relative_to(ROOT)): len(path.read_text().split()) for path in documents}
    assert sum(words.values()) <= MOST_WORDS_OF_DOCS, words


def report(room: str) -> None:
    """`python tests/test_shape.py src/cloister/gateway`: what one folder has."""
    inside = [path for path in FILES if path.is_relative_to((ROOT / room).resolve())]
    print(f"{sum(map(lines_of, inside))} lines in {len(inside)} files")
    for path in inside:
        print(*too_large(path), sep="\n", end="")


if __name__ == "__main__":
    for each in sys.argv[1:]:
        report(each)
