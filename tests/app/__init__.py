"""A Django app with business rows and tasks for the tests."""
