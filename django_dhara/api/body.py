"""The body of a request: bounded before it is read, and strict JSON."""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

from django.http import HttpRequest
from ninja.parser import Parser

from django_dhara import project
from django_dhara.api.problems import Problem


def receive(request: HttpRequest) -> None:
    """Read the body, but never more than one byte beyond what is allowed.

    Raises:
        Problem: it is too large, or no JSON by its content type.
    """
    most = project.usable().api_max_body_bytes
    if _announced(request) > most:
        raise _too_large(most)
    data = request.read(most + 1)
    if len(data) > most:
        raise _too_large(most)
    if data and request.content_type != "application/json":
        raise Problem("unsupported-media-type", "Send `Content-Type: application/json`.")
    request._body = data  # noqa: SLF001 - where Django keeps what `request.body` has read


def _announced(request: HttpRequest) -> int:
    try:
        return int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return 0


def _too_large(most: int) -> Problem:
    return Problem("too-large", f"The body may have {most:,} bytes.")


class StrictParser(Parser):
    """UTF-8, and nothing that JSON does not have."""

    def parse_body(self, request: HttpRequest) -> Any:
        try:
            return json.loads(request.body.decode(), parse_constant=_refuse)
        except RecursionError:
            raise Problem("malformed", "The JSON is nested too deeply.") from None
        except UnicodeDecodeError:
            raise Problem("malformed", "The body is not UTF-8.") from None
        except json.JSONDecodeError as error:
            raise Problem("malformed", f"The body is no JSON: {error}.") from None
        except ValueError:  # of Python's, which tells how the server would raise it
            most = sys.get_int_max_str_digits()
            raise Problem("malformed", f"A whole number in the body has more than {most:,} digits.") from None


def _refuse(name: str) -> NoReturn:
    raise Problem("malformed", f"The body is no JSON: {name} is not JSON.")
