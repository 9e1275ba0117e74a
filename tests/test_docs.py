"""The documentation agrees with the code."""

import argparse
import ast
import importlib
import importlib.util
import re
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class
from django.core.management.base import DjangoHelpFormatter

from django_dhara import checks, conf, doctor, execution, results, tasks

pytestmark = pytest.mark.fast

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_parts_are_up_to_date(generate):
    for page, name, function in generate.PARTS:
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert generate.with_part(text, name, function()) == text, "run `python docs/generate.py`"


def test_every_option_has_a_reason(generate):
    reasons = generate.reasons(conf.Options)
    assert list(reasons) == list(conf.OPTIONS)
    assert all(reasons.values())


def test_every_check_has_a_section():
    page = (ROOT / "docs/reference/checks.md").read_text(encoding="utf-8")
    source = Path(checks.__file__).read_text(encoding="utf-8")
    assert re.findall(r"^### (.*)$", page, flags=re.MULTILINE) == sorted(set(re.findall(r"dhara\.[EW]\d{3}", source)))


def test_every_trouble_has_a_section():
    page = (ROOT / "docs/reference/doctor.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (.*)$", page, flags=re.MULTILINE) == [trouble.id for trouble in doctor.troubles()]


def test_the_changelog_knows_the_newest_check_of_each_kind():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    ids = sorted(set(re.findall(r"dhara\.[EW]\d{3}", Path(checks.__file__).read_text(encoding="utf-8"))))
    assert f"`{max(id for id in ids if '.E' in id)}`" in changelog
    assert f"`{max(id for id in ids if '.W' in id)}`" in changelog


def test_every_picture_is_shown_and_small():
    shown = {
        name for page in PAGES for name in re.findall(r"\]\(\.\./images/([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    pictures = [*ROOT.glob("docs/images/*")]
    assert {picture.name for picture in pictures} == shown
    for picture in pictures:
        start = picture.read_bytes()[:26]
        assert start[25] == 3, f"{picture.name} has no palette: see CONTRIBUTING.md"
        assert picture.stat().st_size < 150_000, picture.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), target


def anchors(page):
    """Of its headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = []
    for heading in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.append(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return {f"{name}-{found[:at].count(name)}" if name in found[:at] else name for at, name in enumerate(found)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_with_an_anchor_lead_to_a_heading(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target and (not target or target.endswith(".md")):
            assert anchor in anchors(page.parent / target if target else page), f"{target}#{anchor}"


def parsers(parser):
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def test_every_command_and_every_flag_of_it_is_in_the_reference():
    page = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (dhara_\w+)\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL))
    commands = [name for name, app in get_commands().items() if app == "django_dhara"]
    assert set(sections) == set(commands)
    of_django = {"--help", "-h", *DjangoHelpFormatter.show_last}
    for name in commands:
        parser = load_command_class("django_dhara", name).create_parser("manage.py", name)
        named = [action.option_strings for each in parsers(parser) for action in each._actions]
        flags = {flag for strings in named if not of_django & {*strings} for flag in strings}
        missing = {flag for flag in flags if not re.search(rf"(?<![\w-]){flag}(?![\w-])", sections[name])}
        assert missing == set(), name


def test_a_page_has_one_title():
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        assert len(re.findall(r"^# ", text, flags=re.MULTILINE)) == 1, page


def test_every_module_is_named_on_the_page_of_the_architecture():
    page = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    package = ROOT / "django_dhara"
    folders = (".", "doctor", "lifecycle", "worker")
    modules = [path.name for folder in folders for path in package.glob(f"{folder}/*.py")]
    packages = [f"{path.parent.name}/" for path in package.glob("*/__init__.py") if path.parent.name != "migrations"]
    assert [name for name in modules + packages if not re.search(rf"(?<!\w){re.escape(name)}", page)] == []


@pytest.mark.parametrize("thing", [results.TaskResult, execution.Context, tasks.Task], ids=lambda thing: thing.__name__)
def test_every_attribute_is_in_the_reference(thing):
    page = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    names = {name for name in dir(thing) if not name.startswith("_")}
    assert {name for name in names if not re.search(rf"`(context\.|await )?{name}\b|### \w+\.{name}\n", page)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_in_python_can_be_parsed(page):
    text = page.read_text(encoding="utf-8")
    for example in re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        ast.parse(example)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_are_named_exist(page):
    commands = {path.stem for path in ROOT.glob("*/**/management/commands/dhara_*.py")}
    assert {"dhara_worker", "dhara_demo"} <= commands
    assert set(re.findall(r"manage\.py (dhara_\w+)", page.read_text(encoding="utf-8"))) <= commands


def test_names_that_examples_import_exist():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for module, names in re.findall(r"^from (django_dhara[\w.]*) import (.+)$", text, flags=re.MULTILINE):
            home = importlib.import_module(module)
            assert [name for name in names.split(", ") if not hasattr(home, name)] == [], page
