from django.db import models


class Effect(models.Model):
    """What an atomic function wrote, in the transaction that settles its task."""

    task_id = models.UUIDField()
    lease = models.BigIntegerField()


class Written(models.Model):
    """What a caller wrote in the transaction in which it enqueued."""

    op = models.CharField(max_length=60)
