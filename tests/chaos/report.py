"""What a run came to, for people."""


def text(result):
    """Some lines: the verdict, what was done, how fast it was back, and the first violations with their events."""
    verdict, figures = result.verdict, result.verdict.figures
    lines = [
        f"{result.profile.name}: {verdict.word}  ({result.profile.title}; seed {result.seed}, {result.minutes:g} min)",
        f"  tasks {figures['tasks']}, runs {figures['starts']}, states {figures['states']}",
        f"  acknowledged {figures['acknowledged']}, rolled back {figures['rolled back']}, unclear {figures['unclear']}",
        f"  faults that hit: {', '.join(f'{code} {count}' for code, count in sorted(verdict.hits.items()))}",
    ]
    for name, what in SPREADS.items():
        if spread := figures[name]:
            lines.append(f"  {what}: {', '.join(f'{share} {value}' for share, value in spread.items())} s")
    if verdict.missed:
        lines.append(f"  VACUOUS for: {', '.join(f'{code} (at least {n})' for code, n in verdict.missed.items())}")
    lines += list(_violations(result))
    return "\n".join(lines)


SPREADS = {
    "death": "worker killed to its tasks free again",
    "outage": "database back to first claim",
    "throughput": "database back to 90 % of the throughput",
    "pickup": "acknowledged to started, in quiet times",
    "handed back": "given back by a worker that stops, to claimed by another",
    "calm": "harmless tasks, acknowledged to started, before there was poison",
    "poisoned": "... and with poison",
}


def _violations(result, most=8):
    violations = result.verdict.violations
    if violations:
        yield f"  {len(violations)} violations; history and logs: {result.folder}"
    for violation in violations[:most]:
        yield f"  {violation.rule}: {violation.text}"
        for event in violation.shown[:6]:
            yield f"      {_one_line(event)}"


def _one_line(event):
    return str(event)[:400]
