from django.db import models


class Note(models.Model):
    """A business row."""

    text = models.CharField(max_length=200)


class Effect(models.Model):
    """What a task did, written by the task; more than one row a task means that it ran more than once."""

    task = models.CharField(max_length=100, db_index=True)
    worker = models.CharField(max_length=100, blank=True)
    at = models.DateTimeField(auto_now_add=True)
