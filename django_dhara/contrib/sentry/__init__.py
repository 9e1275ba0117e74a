"""Sentry: add `"django_dhara.contrib.sentry"` to INSTALLED_APPS. Needs sentry-sdk:
`pip install django-dhara[sentry]`."""
