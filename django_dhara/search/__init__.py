"""Finding tasks: a search as people write it, and the rows that it means, at a bounded cost.

    language.py     text to a `Search` and back, or what is wrong with the text
    moments.py      times as people write them: 2h, 2026-11-30, 14:00
    conditions.py   what a term asks of a row
    sources.py      through which index, and so through how many rows, is looked
    finding.py      pages, counts and walks

The admin and the API share it. No code of a function is imported.
"""

from django_dhara.search.finding import MOST, CursorError, Found, Looked, Page, count, page, walk
from django_dhara.search.language import FIELDS, TEXT, Field, Problem, Search, SearchError, Term, Value, meant, parse
from django_dhara.search.moments import duration, readable

__all__ = [
    "FIELDS",
    "MOST",
    "TEXT",
    "CursorError",
    "Field",
    "Found",
    "Looked",
    "Page",
    "Problem",
    "Search",
    "SearchError",
    "Term",
    "Value",
    "count",
    "duration",
    "meant",
    "page",
    "parse",
    "readable",
    "walk",
]
