"""The file of substitutes: its owner's alone, whole or refused, bounded, without a secret in plain."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from cloister.errors import ObfuscationRefused, SetupError
from cloister.obfuscation import store_file
from cloister.obfuscation.requests import Obfuscation
from cloister.obfuscation.store import Kept
from cloister.obfuscation.store_file import FileStore, SubstitutesFile
from tests.obfuscation.asking import RandomNames, sent

CANARIES = ("Zyxwvu Canary", "Dr Qwertz Canaryson", "xq-zk47y", "of the canarybird", "KANARIENVOGEL")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "kept.json"
    FileStore(SubstitutesFile(path)).keep({"Ann": Kept(values=("Bo",), method="gqs")})
    return path


def test_it_is_its_owner_s_alone_and_what_others_may_read_is_refused(file: Path) -> None:
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert not [each for each in file.parent.iterdir() if stat.S_IMODE(each.stat().st_mode) & 0o077]
    store = FileStore(SubstitutesFile(file))
    for mode in (0o640, 0o604, 0o620, 0o602):
        file.chmod(mode)
        with pytest.raises(SetupError, match="Others may read or own"):
            SubstitutesFile(file)
        with pytest.raises(ObfuscationRefused, match="Others may read or own"):
            store.find("Ann")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_user_s_file_is_refused(file: Path) -> None:
    os.chown(file, 12345, -1)
    with pytest.raises(SetupError, match="Others may read or own"):
        SubstitutesFile(file)


DAMAGE = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "no json": lambda data: b"hello",
    "version": lambda data: data.replace(b'"version":1', b'"version":2'),
    "unknown field": lambda data: data.replace(b'"version":1', b'"version":1,"more":1'),
    "key": lambda data: data.replace(b'"key":"', b'"key":"AAAA'),
    "empty value": lambda data: data.replace(b'"Bo"', b'""'),
    "no values": lambda data: data.replace(b'["Bo"]', b"[]"),
    "capitals": lambda data: data.replace(b'"mixed"', b'"odd"'),
    "name": lambda data: data.replace(b'"entries":{"', b'"entries":{"xyz'),
    "too large": lambda data: data + b" " * store_file.MAX_FILE_BYTES,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_an_error_and_stays_as_it_is(file: Path, damage: str) -> None:
    running, good = FileStore(SubstitutesFile(file)), file.read_bytes()
    file.write_bytes(damaged := DAMAGE[damage](good))
    assert damaged != good
    with pytest.raises(SetupError, match="damaged, too large or of another version"):
        SubstitutesFile(file)
    with pytest.raises(ObfuscationRefused, match="damaged"):
        running.find("Ann")
    with pytest.raises(ObfuscationRefused, match="damaged"):
        running.keep({"Ben": Kept(values=("Cy",), method="gqs")})
    assert file.read_bytes() == damaged


def test_a_file_that_was_replaced_while_in_use_is_refused_and_one_removed_is_written_again(file: Path) -> None:
    running = FileStore(SubstitutesFile(file))
    assert running.find("Ann")
    file.unlink()
    running.keep({"Ben": Kept(values=("Cy",), method="gqs")})
    assert FileStore(SubstitutesFile(file)).find("Ann") and FileStore(SubstitutesFile(file)).find("Ben")
    file.unlink()
    SubstitutesFile(file)
    with pytest.raises(ObfuscationRefused, match="a new file"):
        running.find("Ann")


def test_it_is_bounded_in_secrets_and_bytes_and_forgets_none(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(SubstitutesFile(file))
    with monkeypatch.context() as patched:
        patched.setattr(store_file, "MAX_KEPT", 2)
        store.keep({"Ben": Kept(values=("Cy",), method="gqs")})
        for refused in (lambda: store.refuse_more(1), lambda: store.keep({"Dan": Kept(values=("Ed",), method="gqs")})):
            with pytest.raises(ObfuscationRefused, match="more than 2 secrets"):
                refused()
    with monkeypatch.context() as patched:
        patched.setattr(store_file, "MAX_FILE_BYTES", 1 << 20)
        with pytest.raises(ObfuscationRefused, match="1 MiB"):
            store.keep({f"Dan{at}": Kept(values=("y" * 512,) * 512, method="gqs") for at in range(5)})
    assert store.find("Ann") and store.find("Ben") and store.find("Dan0") is None


def test_no_secret_stands_in_it_in_plain_and_none_but_a_title(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    obfuscation = Obfuscation(RandomNames(), store=FileStore(SubstitutesFile(path), b"sk-a-canary-of-a-key"))
    for secret in CANARIES:
        assert len(sent(obfuscation, f"It is <redacted>{secret}</redacted>, no other.")) == 8
    written = b"".join(each.read_bytes() for each in tmp_path.iterdir()).lower()
    for secret in (*CANARIES, "sk-a-canary"):
        words = secret.lower().replace("-", " ").split()
        long = [word for word in words if len(word) > 4]  # the file's random key may spell a shorter one by chance
        assert long and not [word for word in long if word.encode() in written]
    assert len(json.loads(path.read_bytes())["entries"]) == len(CANARIES)
