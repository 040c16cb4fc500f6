"""`cloister release image` and `cloister release measure`, as a shell sees them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from cloister.transparency.manifest import build_manifest
from tests.cli.conftest import Run
from tests.image.firmware_made import firmware
from tests.image.test_event_log import ccel, event
from tests.image.test_initramfs import a_root, a_tree
from tests.image.test_tdx import bz_image


def test_measure_answers_which_launch_runs_which_release(run: Run, tmp_path: Path) -> None:
    tree, root = a_tree(tmp_path / "tree"), a_root(tmp_path / "root")
    manifest = build_manifest(tree)
    files = {"release.json": manifest.encoded(), "ovmf": firmware(tdx=[(0, 4096, 0xFFFFC000, 4096, 0, 1)])}
    files["vmlinuz"] = bz_image()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    image = str(tmp_path / "image")
    built = run(
        *("release", "image", str(tmp_path / "release.json"), "--root", str(root), "--source", str(tree)),
        *("--out", image, "--json"),
    )
    assert json.loads(built.stdout)["release"] == manifest.measurement().hex()
    given = ("--firmware", str(tmp_path / "ovmf"), "--kernel", str(tmp_path / "vmlinuz"), "--initrd", image)
    snp = json.loads(run("release", "measure", "sev-snp", *given, "--vcpus", "2", "--json").stdout)
    assert snp["release"] == manifest.measurement().hex() and len(snp["measurement"]) == 96
    told = run("release", "measure", "sev-snp", *given, "--vcpus", "2").stdout
    assert snp["measurement"] in told and snp["release"] in told
    (tmp_path / "ccel").write_bytes(ccel(event(0, 4, b"\xab" * 48, b"")))
    tdx = json.loads(run("release", "measure", "tdx", *given, "--event-log", str(tmp_path / "ccel"), "--json").stdout)
    assert tdx["rtmr0"] == hashlib.sha384(bytes(48) + bytes.fromhex("ab" * 48)).hexdigest()
    assert len({tdx[name] for name in ("mrtd", "rtmr0", "rtmr1", "rtmr2")}) == 4
    assert "# rtmr0: not computed" in run("release", "measure", "tdx", *given).stdout
    (tmp_path / "image").write_bytes((tmp_path / "image").read_bytes().replace(b"run = True\n", b"run = Fals\n"))
    refused = run("release", "measure", "tdx", *given)
    assert refused.exit_code == 1 and "not the release's" in refused.stderr
