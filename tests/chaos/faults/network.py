"""The network between the processes and the server: cut, slow, refusing, silent; and the pooler in it."""

from tests.chaos.faults.arena import fault


@fault("cut")
def cut(arena, draw):
    """Every connection through the proxy is reset."""
    with arena.during("cut"):
        cut = arena.proxy.cut()
    if cut:
        arena.witness("F8", cut=cut)


@fault("slow network")
def slow_network(arena, draw):
    """Each packet takes longer, for some seconds."""
    with arena.during("slow network"):
        arena.proxy.delay = draw.uniform(0.005, 0.1)
        before = arena.proxy.passed
        arena.pause(draw.uniform(1, 4))
        arena.proxy.delay = 0.0
    if arena.proxy.passed > before:
        arena.witness("F8", delayed=arena.proxy.passed - before)


@fault("refuse")
def refuse(arena, draw):
    """Nobody gets through, and everybody is told."""
    with arena.during("refuse", through_proxy=True):
        arena.proxy.refuses = True
        cut = arena.proxy.cut()
        arena.pause(draw.uniform(0.5, 2) * arena.plan.lease)
        arena.proxy.refuses = False
    if arena.proxy.refused or cut:
        arena.witness("F8", refused=arena.proxy.refused, cut=cut)


@fault("silence")
def silence(arena, draw):
    """Half open: nothing arrives any more, and nobody is told."""
    with arena.during("silence", through_proxy=True):
        arena.proxy.freeze()
        arena.pause(draw.uniform(0.5, 2) * arena.plan.lease)
        held = arena.proxy.held
        arena.proxy.thaw()
    if held:
        arena.witness("F8", held=held)


@fault("restart pooler")
def restart_pooler(arena, draw):
    """PgBouncer is killed, and back after a moment: all sessions through it are gone."""
    waiting = arena.pooler.waiting()
    with arena.during("restart pooler", down=True):
        arena.pooler.stop()
        arena.pause(draw.uniform(0, 0.5) * arena.plan.lease)
        arena.pooler.start()
    arena.witness("F7", waiting=waiting)


@fault("pause pooler")
def pause_pooler(arena, draw):
    """PAUSE and RESUME, as before a switch of servers: statements wait."""
    with arena.during("pause pooler", down=True):
        arena.pooler.ask("SUSPEND" if draw.random() < 0.2 else "PAUSE")
        arena.pause(draw.uniform(0.3, 1) * arena.plan.lease)
        waiting = arena.pooler.waiting()
        arena.pooler.ask("RESUME")
    if waiting:
        arena.witness("F7", waiting=waiting)
