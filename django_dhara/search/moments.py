"""Times as people write them: so long ago (2h, 1d12h), a day, a time of today, or an ISO time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta

from django.utils import timezone

from django_dhara.models import READABLE
from django_dhara.sql import utc

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_AGO = re.compile(r"(?:\d{1,9}[smhdw])+")
_OF_TODAY = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")


def moment(text: str, now: datetime) -> datetime:
    """The time that a text means, seen from `now`. Without an offset it is in Django's current time zone.

    Raises:
        ValueError: it means none.
    """
    try:
        return _moment(text.strip(), utc(now))
    except OverflowError as error:
        raise ValueError("too far away") from error


def duration(text: str) -> float:
    """The seconds of a time such as 90s, 2h or 1d12h.

    Raises:
        ValueError: it is none.
    """
    if not _AGO.fullmatch(text.strip()):
        raise ValueError("no duration")
    return float(sum(int(part[:-1]) * _UNITS[part[-1]] for part in re.findall(r"\d+\w", text)))


def readable(text: str) -> datetime:
    """The ISO time that stands in an address, in UTC: PostgreSQL reads no offset of 16 hours and more.

    Raises:
        ValueError: it is none, has no offset, or no column can have it.
    """
    when = datetime.fromisoformat(text)
    if when.tzinfo is None or not READABLE[0] <= when <= READABLE[1]:
        raise ValueError("no time with an offset that a column can have")
    return when.astimezone(UTC)


def _moment(text: str, now: datetime) -> datetime:
    if _AGO.fullmatch(text):
        return now - timedelta(seconds=duration(text))
    here = timezone.localtime(now)
    if text in ("today", "yesterday"):
        return _aware(datetime.combine(here.date() - timedelta(days=text == "yesterday"), time()))
    if _OF_TODAY.fullmatch(text):
        return _aware(datetime.combine(here.date(), time.fromisoformat(text.rjust(5, "0"))))
    return _aware(datetime.fromisoformat(text))


def _aware(when: datetime) -> datetime:
    aware = timezone.make_aware(when) if when.tzinfo is None else when
    if not 1970 <= aware.year <= 9000:
        raise ValueError("out of the range of what PostgreSQL and an id can hold")
    return aware.astimezone(UTC)  # PostgreSQL reads no offset of 16 hours and more
