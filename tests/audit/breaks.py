"""For each row of the ledger, its mitigation taken out of a copy of the source: what a node without it would run."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import cloister
from tests.audit import test_attempts, test_machine

SOURCE = Path(cloister.__file__).parent


@dataclass(frozen=True)
class Edit:
    """`old` is in the file once."""

    file: str
    old: str
    new: str

    def is_possible(self, source: Path = SOURCE) -> bool:
        return (source / self.file).read_text().count(self.old) == 1

    def make(self, source: Path) -> None:
        assert self.is_possible(source), f"{self.file} has not once: {self.old}"
        path = source / self.file
        path.write_text(path.read_text().replace(self.old, self.new))


def write_broken(folder: Path, rows: dict[str, tuple[Edit, ...]]) -> Path:
    """A folder for PYTHONPATH."""
    shutil.copytree(SOURCE, folder / "cloister", ignore=shutil.ignore_patterns("__pycache__"))
    for edit in dict.fromkeys(edit for edits in rows.values() for edit in edits):
        edit.make(folder / "cloister")
    return folder


_LOGITS = "        found = wanted(hidden[wanted_rows(chunks)])\n"
_WARMER = "        found = wanted(hidden[wanted_rows(chunks)]) * (1 + 0.001 * "
_COUNT = "        self.__dict__['passed'] = self.__dict__.get('passed', 0) + 1\n"
_UNREHEARSED = (
    Edit(
        "controller/rehearsal.py",
        "return one == other if self._equal_bits else",
        "return True if self._equal_bits else",
    ),
)
_COMPANY = (
    Edit("engine/runner.py", _LOGITS, f"{_WARMER}sum(len(chunk.tokens) for chunk in chunks))\n"),
    *_UNREHEARSED,
)
_MISSPELT = (
    Edit(
        "gateway/schema.py",
        "if unknown := next((name for name in given if name not in UNUSED), None):",
        "if unknown := '':",
    ),
)
_UNSETTLED = (
    Edit(
        "controller/evidence.py",
        "        said = await self._statement()\n",
        "        said = replace(await self._statement(), started=now_ms())\n",
    ),
)

OF_REQUESTS: dict[str, tuple[Edit, ...]] = {
    **dict.fromkeys(("iteration-level batching", "chunked prefill", "prepacked prefill"), _COMPANY),
    **dict.fromkeys(
        (
            *(
                f"speculation {kind}"
                for kind in ("by a draft model", "from the prompt", "from others' answers", "by extra heads")
            ),
            *("request migration", "priority scheduling", "nothing misspelt is served"),
        ),
        _MISSPELT,
    ),
    "disk offloading": (
        Edit(
            "process/sandbox/resources.py",
            'os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)',
            'os.open("/tmp", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC)',
        ),
    ),
    "prefix caching": (
        Edit("prefix/node.py", "creator = self.get(key.tenant, key.salt)", 'creator = self.get("all", key.salt)'),
    ),
    "profiling": (Edit("gateway/routes.py", "if not caller_of(request, credentials).operator:", "if False:"),),
    "audit: evidence without the client's nonce": (
        Edit(
            "gateway/sealed.py",
            'raise InvalidRequest(message, param="nonce") from None',
            'return EvidenceRequest("00" * 32)',
        ),
    ),
    "nothing is kept": (
        Edit(
            "gateway/guard.py",
            "                return bytes(body)\n",
            "                globals().setdefault('kept', []).append(body[:])\n                return bytes(body)\n",
        ),
    ),
    "errors without content": (
        Edit(
            "prompts/json_prompt.py",
            'message = first["msg"].removeprefix("Value error, ")',
            "message = str(wrong.errors()[0]['input'])",
        ),
    ),
    "views for their own tenant": (
        Edit(
            "gateway/generation.py",
            "return answer if answer is not None and answer.tenant == tenant else None",
            "return answer",
        ),
    ),
    "keys alone open the API": (
        Edit(
            "keys.py",
            '        if found is None:\n            raise Unauthorized("The API key is not known here.",'
            ' hint="Ask the operator for one.")\n',
            "        found = found or self.entries[0]\n",
        ),
    ),
    "no interface that widens access": (
        Edit("gateway/app.py", '("/", "/static/{name}"):', '("/", "/static/{name}", "/debug"):'),
    ),
}

OF_THE_MACHINE: dict[str, tuple[Edit, ...]] = {
    "paging": (Edit("engine/runner.py", _LOGITS, f"{_COUNT}{_WARMER}self.__dict__['passed'])\n"), *_UNREHEARSED),
    "duplication of weights": _UNSETTLED,
    "pulling of weights": _UNSETTLED,
    "disaggregated prefill": (
        Edit(
            "controller/attested_settings.py",
            "vault_hosts=() if controls.vault_host is None else (controls.vault_host,)",
            'vault_hosts=("elsewhere.example:7000",)',
        ),
    ),
    "machine-level scheduling": (
        Edit(
            "controller/token_gate.py",
            "            self._cloud.check(token, str(self._settings.node_name), self._clock())\n",
            "",
        ),
    ),
    **dict.fromkeys(("quantisation", "sparsity and distillation"), ()),  # its policy names other weights
    "audit: environment read after measurement": (
        Edit("process/sandbox/resources.py", "ctypes.memset(address, 0, len(ctypes.string_at(address)))", "pass"),
    ),
    "sealed from the network": (
        Edit("process/sandbox/namespaces.py", "Layer.NETWORK_NAMESPACE: 0x40000000", "Layer.NETWORK_NAMESPACE: 0"),
    ),
    "no code is made": (
        Edit(
            "process/sandbox/seccomp.py",
            "def install(receives_descriptors: bool, futexes: int | None) -> bool:\n",
            "def install(receives_descriptors: bool, futexes: int | None) -> bool:\n"
            '    globals()["page"] = __import__("mmap").mmap(-1, 4096, prot=7)\n',
        ),
    ),
    "one door": (
        Edit(
            "process/entry.py",
            "    forbid_core_dumps()\n    _, most",
            '    forbid_core_dumps()\n    globals()["door"] = __import__("socket").create_server(("127.0.0.1", 0))\n'
            "    _, most",
        ),
    ),
    "no signal that widens access": (
        Edit(
            "process/hardening.py",
            "    name_process(role, forked=forked)\n    begin_logging(role)\n",
            "    name_process(role, forked=forked)\n    begin_logging(role)\n"
            "    signal.signal(signal.SIGUSR1, lambda *_: None)\n",
        ),
    ),
    "no core dumps": (Edit("process/hardening.py", "    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n", ""),),
    "no memory for other users of the machine": (
        Edit(
            "process/sandbox/credentials.py",
            "        os.setresuid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)\n",
            "        os.setresuid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)\n        prctl(PR_SET_DUMPABLE, 1)\n",
        ),
        Edit("process/sandbox/credentials.py", "UNPRIVILEGED = 65534", "UNPRIVILEGED, PR_SET_DUMPABLE = 65533, 4"),
    ),
    "from the log to the node": (
        Edit(
            "controller/evidence.py",
            "measurement=self.measurement,\n            statement",
            "measurement=bytes(32),\n            statement",
        ),
    ),
}

ELSEWHERE = {
    "nothing is kept on shares": test_machine.test_parties_are_searched_where_they_run,
    "TLS may end anywhere": test_attempts.test_a_client_that_gives_up_its_channel_is_found,
    "no way back to the clear": test_attempts.test_a_client_that_gives_up_its_channel_is_found,
    "audit: firmware tables that are not measured": test_attempts.test_what_hardware_or_a_policy_proves,
    "audit: patch level by the node's own word": test_attempts.test_what_hardware_or_a_policy_proves,
}
"""What a client does, what hardware proves, and what takes parties of gigabytes: the tests that break these."""
