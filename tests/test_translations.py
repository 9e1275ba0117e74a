"""The catalogues: every string is in them, translations keep the placeholders, and what is read is what is written."""

import ast
import gettext
import re
from collections import Counter
from pathlib import Path

import pytest
from django.utils.translation import gettext as translated
from django.utils.translation import ngettext, override, template

import django_dhara
from django_dhara.models import Queue
from django_dhara.states import State
from tests.minutes import a_crew, an_afternoon
from tests.test_admin import a_client, shown

pytestmark = pytest.mark.fast

ROOT = Path(django_dhara.__file__).parent
LANGUAGES = sorted(path.name for path in (ROOT / "locale").iterdir())
#: What marks a string, in Python and in what Django makes of a template; a plural has two.
MARKS = {"_", "gettext", "gettext_lazy", "gettext_noop", "_lazy"}
PLURALS = {"ngettext", "ngettext_lazy"}


def in_python(source):
    """The marked strings: (singular, plural or None)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            if node.func.id in MARKS and texts:
                yield texts[0], None
            elif node.func.id in PLURALS and len(texts) > 1:
                yield texts[0], texts[1]


_CALL = re.compile(r"""\b(?:n?gettext)\((?:[^"'()]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')*\)""")


def in_template(source):
    for call in _CALL.findall(template.templatize(source)):
        literals = re.findall(r"""u?("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""", call)
        texts = [ast.literal_eval(literal) for literal in literals]
        yield texts[0], texts[1] if call.startswith("n") else None


@pytest.fixture(scope="module")
def marked():
    found = {text for path in ROOT.rglob("*.py") for text in in_python(path.read_text(encoding="utf-8"))}
    pages = [*ROOT.glob("templates/**/*.html")]
    return found | {text for path in pages for text in in_template(path.read_text(encoding="utf-8"))}


def catalogue(language):
    """What the file for people says: (singular, plural or None) to its translations."""
    source = (ROOT / "locale" / language / "LC_MESSAGES" / "django.po").read_text(encoding="utf-8")
    found = {}
    for block in source.split("\n\n")[1:]:
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        fields, name = {}, ""
        for line in lines:
            head, _space, text = line.partition(" ")
            name, text = (name, line) if line.startswith('"') else (head, text)
            fields[name] = fields.get(name, "") + ast.literal_eval(text)
        forms = [fields[each] for each in fields if each.startswith("msgstr")]
        found[fields["msgid"], fields.get("msgid_plural")] = forms
    return found


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_marked_string_is_translated_and_nothing_else_is(language, marked):
    assert len(marked) > 500
    assert set(catalogue(language)) == marked, "see CONTRIBUTING.md, Translations"
    assert all(all(forms) for forms in catalogue(language).values())


@pytest.mark.parametrize("language", LANGUAGES)
def test_nothing_is_only_a_guess(language):
    assert ", fuzzy" not in (ROOT / "locale" / language / "LC_MESSAGES" / "django.po").read_text(encoding="utf-8")


PLACEHOLDER = re.compile(r"%%s|%(?:\(\w+\))?[a-z]|\{\}|#(?= selected| ausgewählt| choisies)|</?\w+|\bhref=")


@pytest.mark.parametrize("language", LANGUAGES)
def test_placeholders_agree(language):
    for (one, many), forms in catalogue(language).items():
        for source, form in zip([one, many or one], [forms[0], forms[-1]], strict=True):
            assert Counter(PLACEHOLDER.findall(form)) == Counter(PLACEHOLDER.findall(source)), (source, form)


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_read_is_what_is_written(language):
    with (ROOT / "locale" / language / "LC_MESSAGES" / "django.mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    for (one, many), forms in catalogue(language).items():
        if many is None:
            assert compiled.gettext(one) == forms[0]
        else:
            assert [compiled.ngettext(one, many, number) for number in (1, 2)] == forms
    known = {key if isinstance(key, str) else key[0] for key in compiled._catalog}
    assert known - {""} == {one for one, _many in catalogue(language)}


def test_there_are_german_and_french():
    assert LANGUAGES == ["de", "fr"]
    with override("de"):
        assert translated("Queue latency") == "Wartezeit"
        assert ngettext("%s run", "%s runs", 2) == "%s Läufe"
        assert str(State.DEAD.label) == "Aufgegeben"
    assert str(State.DEAD.label) == "Dead"


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("de", ["Braucht einen Menschen", "Die Queue", "gerät in Rückstand", "Durchsatz", "Aufgaben"]),
        ("fr", ["Demande une intervention", "La file", "prend du retard", "Débit", "Tâches"]),
    ],
)
def test_pages_speak_the_readers_language(db, settings, language, words):
    settings.LANGUAGE_CODE = language
    an_afternoon()
    a_crew()
    client = a_client(superuser=True)
    seen = shown(client.get("/admin/dhara/"))
    assert [word for word in words if word not in seen] == []
    queue = Queue.objects.get(name="reports")
    for page in (
        "task/",
        "queue/",
        "worker/",
        "bulkchange/",
        "token/",
        "task/dead/",
        f"queue/default_3A{queue.name}/change/",
    ):
        assert client.get(f"/admin/dhara/{page}").status_code == 200
