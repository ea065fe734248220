"""The site of `make docs`: every page is in it, and a link or an anchor that leads nowhere ends the build."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    found = importlib.import_module("site_pages")
    monkeypatch.setattr(found, "SOURCE", tmp_path / "source")
    return found


def test_every_page_is_in_the_menu_and_the_menu_has_no_other(site: Any) -> None:
    menu = re.findall(r"^ +- .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    site.stage()
    pages = {path.relative_to(site.SOURCE).as_posix() for path in site.SOURCE.rglob("*.md")}
    assert len(menu) == len(set(menu)) and set(menu) <= pages
    assert {page for page in pages - set(menu) if not page.startswith("docs/findings/")} == set()


def test_code_that_looks_like_a_declaration_is_written_in_numbers(site: Any) -> None:
    site.stage()
    text = "".join(path.read_text(encoding="utf-8") for path in site.SOURCE.rglob("*.md"))
    assert "&#60;&#33;&#91;" in text, "faults.md has such a pattern"
    assert re.findall(r"`[^`\n]*<!\[[^`\n]*`", text) == []


def test_what_is_pinned_for_the_demo_and_the_site_is_what_the_tests_run_with() -> None:
    def pinned(name: str) -> set[tuple[str, str]]:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "://" not in text
        return set(re.findall(r"^([a-z0-9._-]+)==(\S+)", text, re.MULTILINE))

    tested = pinned("requirements.lock")
    names = {name for name, _ in tested}
    assert pinned("requirements-demo.lock") <= tested, "`make lock` makes them together"
    assert {each for each in pinned("requirements-docs.lock") if each[0] in names} <= tested
    assert not {"scipy", "lightning", "mypy", "mkdocs"} & {name for name, _ in pinned("requirements-demo.lock")}


def test_a_broken_link_ends_the_build(
    site: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs-material is not installed: `make docs` installs it")
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[0]
    config = config.replace("build/site-source", "source").replace("build/site", "built")
    (tmp_path / "mkdocs.yml").write_text(config, encoding="utf-8")
    monkeypatch.setattr(site, "CONFIG", tmp_path / "mkdocs.yml")
    monkeypatch.setattr(site, "stage", lambda: None)
    page = tmp_path / "source" / "README.md"
    page.parent.mkdir()
    page.write_text("# A\n\n## B c\n\n[x](#b-c)\n", encoding="utf-8")
    assert site.main() == 0
    page.write_text("# A\n\n[x](nowhere.md) [y](#b-c)\n", encoding="utf-8")
    assert site.main() == 1
    said = capfd.readouterr().err
    assert "nowhere.md" in said and "#b-c" in said
