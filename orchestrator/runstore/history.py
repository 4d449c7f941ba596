"""What fsdpq did for a run, from its events. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.decide import BY_HAND, REFUSED, History, Over, Restarted, Stopped
from orchestrator.judging.classify import Cause, Verdict
from orchestrator.judging.nodes import Suspicion, suspicions

Event = Mapping[str, Any]


class _Reader:
    """Takes the events one after the other; a method for each kind, called `on_<kind>`."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.asked_at: float | None = None
        self.asked_nodes: int | None = None
        self.sizes: list[tuple[str, int]] = []
        self.restarts: list[Restarted] = []
        self.answered: object = None
        self.gave_up: Over | None = None
        self.hurried: list[tuple[str, int | None]] = []
        self.refused: list[tuple[float, str]] = []
        self.stopped: list[Stopped] = []
        self.suspicions: list[Suspicion] = []
        self.judged: set[int] = set()
        self.excluded: list[tuple[str, tuple[str, ...]]] = []
        self.unexcludable: list[str] = []
        self.micro_batch: int | None = None
        self.told_to_stop: list[tuple[int, float]] = []
        self.looked: list[tuple[int, float]] = []

    def on_submitting(self, event: Event) -> None:
        self.asked_at = float(event.get("at", 0.0))
        nodes = event.get("nodes")
        self.asked_nodes = nodes if isinstance(nodes, int) else None

    def on_submitted(self, event: Event) -> None:
        self.asked_at = self.gave_up = None
        self.refused.clear()
        job_id = str(event.get("job_id"))
        if job_id not in self.submitted:
            self.submitted.append(job_id)
        if nodes := _texts(event.get("exclude")):
            self.excluded.append((job_id, nodes))
        if isinstance(event.get("nodes"), int):
            self.sizes.append((job_id, event["nodes"]))

    def on_refused(self, event: Event) -> None:
        if event.get("what") == "exclude":
            self.unexcludable.append(str(event.get("job_id")))
        if event.get("what") != "submit":
            return
        self.asked_at = None
        self.refused.append((float(event.get("at", 0.0)), str(event.get("why"))))
        # It did not start, so it says nothing about the program either.
        self.restarts[-1:] = [Restarted(REFUSED, r.checkpoint_step) for r in self.restarts[-1:]]

    def on_restart(self, event: Event) -> None:
        # Whoever wrote down the one before for the same end was killed, or got no answer.
        if self.answered is not None and event.get("key") == self.answered:
            self.restarts[-1:] = [Restarted(REFUSED, r.checkpoint_step) for r in self.restarts[-1:]]
        self.answered = event.get("key")
        cause, step = str(event.get("cause")), event.get("checkpoint_step")
        self.restarts.append(Restarted(cause, step, str(event.get("signature") or "")))
        self.gave_up = None
        if isinstance(event.get("micro_batch"), int):
            self.micro_batch = event["micro_batch"]
        if cause == BY_HAND:
            self.refused.clear()

    def on_start_now(self, event: Event) -> None:
        self.hurried.append((str(event.get("job_id")), event.get("restart")))

    def on_told_to_stop(self, event: Event) -> None:
        self.told_to_stop += _at_attempt(event)

    def on_looked_at_network(self, event: Event) -> None:
        self.looked += _at_attempt(event)

    def on_gave_up(self, event: Event) -> None:
        self.gave_up = Over("failed", str(event.get("why")), cause(event.get("cause")))

    def on_stopping(self, event: Event) -> None:
        nodes = event.get("nodes")
        self.stopped.append(
            Stopped(
                str(event.get("job_id")),
                cause(event.get("cause")),
                str(event.get("why")),
                nodes if isinstance(nodes, int) else None,
                float(event.get("at", 0.0)),
            )
        )

    def on_not_stopped(self, event: Event) -> None:
        self.stopped = [s for s in self.stopped if s.job_id != str(event.get("job_id"))]

    def on_attempt_ended(self, event: Event) -> None:
        number = event.get("attempt")
        if not isinstance(number, int) or number in self.judged:
            return
        self.judged.add(number)
        verdict = Verdict(
            cause(event.get("cause")),
            str(event.get("why")),
            suspects=_texts(event.get("suspects")),
            node=str(event.get("node") or ""),
        )
        self.suspicions += suspicions(verdict, at=float(event.get("at", 0.0)), attempt=number)

    def on_excluded(self, event: Event) -> None:
        self.excluded.append((str(event.get("job_id")), _texts(event.get("nodes"))))
        forgiven = _texts(event.get("let_go"))
        self.suspicions = [s for s in self.suspicions if s.proof or s.node not in forgiven]


def history(events: Iterable[Event]) -> History:
    """Return what fsdpq did for a run. A kind of event that is not known is passed over."""
    reader = _Reader()
    for event in events:
        handler = getattr(reader, f"on_{str(event.get('kind')).replace(' ', '_')}", None)
        if handler is not None:
            handler(event)
    return History(
        submitted=tuple(reader.submitted),
        asked_at=reader.asked_at,
        asked_nodes=reader.asked_nodes,
        sizes=tuple(reader.sizes),
        restarts=tuple(reader.restarts),
        gave_up=reader.gave_up,
        hurried=tuple(reader.hurried),
        refused=tuple(reader.refused),
        stopped=tuple(reader.stopped),
        suspicions=tuple(reader.suspicions),
        judged=frozenset(reader.judged),
        excluded=tuple(reader.excluded),
        unexcludable=tuple(reader.unexcludable),
        micro_batch=reader.micro_batch,
        told_to_stop=tuple(reader.told_to_stop),
        looked=tuple(reader.looked),
    )


def cause(text: object) -> Cause:
    """Return the cause called ``text``; an event of another version may have a word of its own."""
    try:
        return Cause(str(text))
    except ValueError:
        return Cause.NO_PROGRESS


def _at_attempt(event: Event) -> list[tuple[int, float]]:
    number = event.get("attempt")
    return [(number, float(event.get("at", 0.0)))] if isinstance(number, int) else []


def _texts(value: object) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()
