"""A strict Content-Security-Policy for the browser tests."""

from tests.browser.conftest import POLICY


class StrictPolicy:
    def __init__(self, get_response):
        self.get_response = get_response

    def __call__(self, request):
        response = self.get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response
