"""The options of a backend: what is taken, what is refused, and which source wins."""

import math

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_dhara import conf

pytestmark = pytest.mark.fast

NUMBERS = [name for name, option in conf.OPTIONS.items() if option.metadata]
WHOLE = [name for name in NUMBERS if isinstance(conf.OPTIONS[name].default, int)]
REAL = [name for name in NUMBERS if isinstance(conf.OPTIONS[name].default, float)]
BOOLEAN = [name for name, option in conf.OPTIONS.items() if isinstance(option.default, bool)]
TEXT = [name for name, option in conf.OPTIONS.items() if isinstance(option.default, str)]

NO_NUMBERS = [True, False, None, "", "ten", "0x10", "1 2", "nan", math.nan, math.inf, -math.inf, [], {}, b"10", 1j]
OUT_OF_BOUNDS = [-1, 10**12, 10**400, 10**5000, "-1", "1" * 5000]


def problems(**given):
    return list(conf.problems("default", {name.upper(): value for name, value in given.items()}, {}))


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", NO_NUMBERS + OUT_OF_BOUNDS, ids=lambda value: type(value).__name__)
def test_no_number_option_takes_what_is_no_number_or_far_off(name, value):
    [problem] = problems(**{name: value})
    assert problem[:3] == ("value", name, f"TASKS['default']['OPTIONS']['{name.upper()}']")
    assert problem.message.startswith("must be ")
    assert len(problem.message) < 200


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", [10.0, 10.5, "10.5", "1e3"])
def test_a_whole_number_is_not_rounded(name, value):
    [problem] = problems(**{name: value})
    assert problem.message.startswith("must be a whole number, not ")


@pytest.mark.parametrize("name", NUMBERS)
def test_a_limit_is_inside(name):
    low, high = conf.OPTIONS[name].metadata["at_least"], conf.OPTIONS[name].metadata["at_most"]
    to_type = type(conf.OPTIONS[name].default)
    for value in (low, high, conf.OPTIONS[name].default):
        assert conf.parse(name, to_type(value)) == value
        assert conf.parse(name, str(to_type(value))) == value
    with pytest.raises(ValueError, match="must be between"):
        conf.parse(name, high + 1)


@pytest.mark.parametrize("name", REAL)
def test_a_real_number_may_be_given_as_an_int(name):
    assert conf.parse(name, 60) == 60.0
    assert isinstance(conf.parse(name, 60), float)


@pytest.mark.parametrize("name", BOOLEAN)
def test_a_truth_value_is_a_bool_or_a_word(name):
    assert [conf.parse(name, word) for word in (True, "true", "YES", "on", "1")] == [True] * 5
    assert [conf.parse(name, word) for word in (False, "false", "No", "off", "0")] == [False] * 5
    for value in (1, 0, 2, None, "", "maybe", math.nan, []):
        [problem] = problems(**{name: value})
        assert problem.message == f"must be true or false, not {value!r}."


@pytest.mark.parametrize("name", TEXT)
def test_a_text_is_a_str(name):
    for value in (1, None, True, b"default", math.nan, ["default"]):
        [problem] = problems(**{name: value})
        assert problem.message == f"must be a string, not {value!r}."


def test_each_kind_of_option_is_in_the_tables_above():
    assert sorted(WHOLE + REAL + BOOLEAN + TEXT) == sorted(conf.OPTIONS)


def test_flags_win_over_the_environment_over_options_over_defaults():
    given = {"CONCURRENCY": 2, "MAX_LOST": 2, "MAX_ATTEMPTS": 2}
    environ = {"DHARA_MAX_LOST": "3", "DHARA_MAX_ATTEMPTS": "3", "DHARA_NOTIFY": "off"}
    options = conf.read("default", given, environ, max_attempts=4, max_prefetch=None)
    assert (options.concurrency, options.max_lost, options.max_attempts) == (2, 3, 4)
    assert (options.notify, options.max_prefetch) == (False, conf.Options().max_prefetch)


def test_the_source_that_wins_is_the_one_that_is_named():
    assert next(conf.problems("q", {"MAX_LOST": 1}, {"DHARA_MAX_LOST": "x"})).where == (
        "environment variable DHARA_MAX_LOST"
    )
    assert next(conf.problems("q", {"MAX_LOST": 1}, {"DHARA_MAX_LOST": "2"}, max_lost=0)).where == "--max-lost"


def test_reading_raises_with_the_path_of_the_first_mistake():
    with pytest.raises(ImproperlyConfigured) as caught:
        conf.read("mail", {"CONCURRENCY": 0}, {})
    assert str(caught.value) == "TASKS['mail']['OPTIONS']['CONCURRENCY'] must be between 1 and 1000, not 0."


@pytest.mark.parametrize("given", [None, [], "CONCURRENCY", 5, [("CONCURRENCY", 1)]])
def test_options_that_are_no_dict_are_one_mistake(given):
    [problem] = conf.problems("default", given, {})
    assert problem.kind == "shape"
    assert problem.message == f"must be a dict, not {type(given).__name__}."


@pytest.mark.parametrize("key", ["concurrency", "Concurrency", "CONCURENCY", "", 5, None, ("CONCURRENCY",)])
def test_a_key_that_is_no_option_is_refused(key):
    [problem] = conf.problems("default", {key: 5}, {})
    assert problem.kind == "unknown"
    assert problem.where == f"TASKS['default']['OPTIONS'][{key!r}]"


def test_the_first_delay_is_not_longer_than_the_longest():
    [problem] = problems(backoff_base_seconds=10, backoff_cap_seconds=5)
    assert problem.kind == "conflict"
    [problem] = problems(backoff_base_seconds=301)
    assert problem.message == "is 301, and must not be larger than BACKOFF_CAP_SECONDS, which is 300."


def test_every_mistake_is_told_at_once():
    given = {"CONCURRENCY": 0, "LEASE_SECONDS": "soon", "LEASES": 1}
    assert len(list(conf.problems("default", given, {"DHARA_NOTIFY": "perhaps"}))) == 4


def test_what_can_be_used_is_used_beside_a_mistake():
    options = conf.usable("default", {"DATABASE": "queue", "CONCURRENCY": 0}, {})
    assert (options.database, options.concurrency) == ("queue", conf.Options().concurrency)
    assert conf.usable("default", None, {}) == conf.Options()


def test_a_default_obeys_its_own_limits():
    assert conf.read("default", {name.upper(): option.default for name, option in conf.OPTIONS.items()}, {}) == (
        conf.Options()
    )
