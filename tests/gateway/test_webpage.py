from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from cloister.config import DEVELOPMENT_KEY, GatewaySettings
from cloister.gateway import app as webpage
from cloister.gateway.app import create_app
from cloister.keys import key_line, new_key
from tests.gateway.fakes import MODEL, ByteTokenizer, FakeBackend


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("<!doctype html><title>page</title>")
    (tmp_path / "page" / "app.js").write_text("let x = 1")
    (tmp_path / "outside.txt").write_text("outside")
    monkeypatch.setattr(webpage, "FOLDER", tmp_path / "page")
    return tmp_path / "page"


async def test_the_page_and_its_files_come_with_a_strict_policy(page: Path, http: httpx.AsyncClient) -> None:
    http.headers.pop("authorization")
    for path, kind in (("/", "text/html"), ("/static/app.js", "javascript")):
        response = await http.get(path)
        assert response.status_code == 200 and kind in response.headers["content-type"]
        policy = response.headers["content-security-policy"]
        assert "default-src 'self'" in policy and "unsafe" not in policy and "http" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
    assert (await http.head("/")).status_code == 200


@pytest.mark.parametrize(
    "path", ["/static/../outside.txt", "/static/%2e%2e/outside.txt", "/static/nothing.js", "/static/"]
)
async def test_nothing_outside_the_folder_is_served(page: Path, http: httpx.AsyncClient, path: str) -> None:
    response = await http.get(path)
    assert response.status_code == 404 and "outside" not in response.text
    assert response.json()["error"]["code"] == "not_found"


async def test_what_the_page_is_told(http: httpx.AsyncClient, backend: FakeBackend, tmp_path: Path) -> None:
    http.headers.pop("authorization")
    told = (await http.get("/api/page")).json()
    assert told["model"] == MODEL and told["development_key"] == DEVELOPMENT_KEY
    assert [level["id"] for level in told["levels"]] == [
        "open", "shared", "partitioned", "obfuscated", "isolated", "mpc",
    ]  # fmt: skip
    assert [level["id"] for level in told["levels"] if level["enabled"]] == ["open", "partitioned", "isolated"]
    assert told["default_level"] == "partitioned"
    assert told["missing_layers"] == ["memory_lock"], "a weaker seal is said"
    assert all(level["provider_sees"] for level in told["levels"])
    keys = tmp_path / "keys.toml"
    keys.write_text(f"[keys]\n{key_line(new_key(), 'alice')}")
    app = create_app(backend, ByteTokenizer(), MODEL, GatewaySettings(keys_file=keys), created=1)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as other:
        assert (await other.get("/api/page")).json()["development_key"] is None
