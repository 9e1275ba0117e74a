"""The digest of a migration: the same for every form of it, another one for everything that it does otherwise."""

import ast

import pytest

from django_dhara.management import digest
from django_dhara.management.digest import digest as digest_of
from example_project.localdb.place import PROJECT

pytestmark = pytest.mark.fast

SOURCE = '''
# Written by hand.
import os
from django.db import migrations, models

def fill(apps, schema_editor):
    """Give every bed a name."""
    for number in range(3):
        apps.get_model("garden", "Bed").objects.create(name=f"bed {number}", size=1.5)

class Migration(migrations.Migration):
    initial = True
    dependencies = [("shop", "0001_initial")]
    operations = [
        migrations.RunPython(fill),
        migrations.RunSQL("SELECT 1" " + 1", reverse_sql=None),
    ]
'''
#: Of SOURCE, on every Python: a digest that was kept on one of them is compared on the next.
PINNED = "1:bcc5ef14f2fa8bb3840981ee29f2884ed77125deccf4e1c498eef6ea46206397"

FORMS = {
    "comments": ("# Written by hand.", "# By somebody else.\n\n"),
    "docstring": ('"""Give every bed a name."""', '"""Named beds."""'),
    "no docstring": ('    """Give every bed a name."""\n', ""),
    "quotes": ('"garden", "Bed"', "'garden', 'Bed'"),
    "line breaks": ("migrations.RunPython(fill),", "migrations.RunPython(\n            fill,\n        ),"),
    "parentheses": ("range(3)", "range((3))"),
    "joined strings": ('"SELECT 1" " + 1"', '"SELECT 1 + 1"'),
    "numbers": ("size=1.5", "size=1.50"),
    "order of imports": ("import os\nfrom django.db import migrations, models\n", None),
    "indentation": ("\n        migrations.RunSQL", "\n            migrations.RunSQL"),
    "dependencies, after a squash": ('"0001_initial")]', '"0001_squashed_0009")]'),
    "replaces": ("initial = True", "initial = True\n    replaces = [('garden', '0001_initial')]"),
    "annotated replaces": ("initial = True", "initial = True\n    replaces: list = []"),
    "pass": ("initial = True", "initial = True\n    pass"),
}
CHANGES = {
    "SQL": ("SELECT 1", "SELECT 2"),
    "a number": ("range(3)", "range(4)"),
    "the type of a number": ("range(3)", "range(3.0)"),
    "a name": ("size=1.5", "length=1.5"),
    "an argument": ("reverse_sql=None", "reverse_sql=''"),
    "order of operations": (
        "migrations.RunPython(fill),\n        migrations.RunSQL(",
        "migrations.RunSQL('SELECT 1 + 1'),\n        migrations.RunPython(",
    ),
    "one operation less": ("        migrations.RunPython(fill),\n", ""),
    "an f-string": ('f"bed {number}"', 'f"bed {number!r}"'),
    "no longer an f-string": ('f"bed {number}"', '"bed {number}"'),
    "where a name comes from": ("from django.db import migrations", "from garden.db import migrations"),
    "the body of a function": ("for number in range(3):", "for number in range(3) and ():"),
    "atomic": ("initial = True", "initial = True\n    atomic = False"),
}


def changed(old, new):
    assert old in SOURCE
    if new is None:
        new = "from django.db import models\nfrom django.db import migrations\nimport os\n"
    return SOURCE.replace(old, new)


@pytest.mark.parametrize("form", FORMS)
def test_another_form_is_the_same_migration(form):
    source = changed(*FORMS[form])
    ast.parse(source)
    assert source != SOURCE
    assert digest_of(source) == digest_of(SOURCE)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_another_migration(change):
    assert digest_of(changed(*CHANGES[change])) != digest_of(SOURCE)


def test_what_python_prints_of_its_tree_is_the_same_migration():
    """As strong a formatter as there is: all layout, all comments and all quotes are its own."""
    assert digest_of(ast.unparse(ast.parse(SOURCE))) == digest_of(SOURCE)
    for path in (PROJECT / "django_dhara/migrations").glob("0*.py"):
        source = path.read_text(encoding="utf-8")
        assert digest_of(ast.unparse(ast.parse(source))) == digest_of(source)


def test_every_python_makes_the_same_digest():
    assert digest_of(SOURCE) == PINNED


def test_an_odd_escape_is_not_told_a_second_time():
    assert digest_of('x = "\\d"') == digest_of(r'x = r"\d"')


def test_a_digest_of_another_scheme_is_not_compared():
    assert digest.is_comparable(digest_of(SOURCE))
    assert not digest.is_comparable("0:" + digest_of(SOURCE)[2:])
    assert not digest.is_comparable("")
