"""Step after step, until the last one is done or all ranks agree to stop."""

import time
from collections.abc import Callable
from typing import Any

from orchestrator.runtime import Notice, Run
from orchestrator.spec.train import TrainSpec
from orchestrator.trainer.caches import save_caches
from orchestrator.trainer.compiling import describe_compilation
from orchestrator.trainer.evaluation import Evaluator, describe
from orchestrator.trainer.metrics import Console, MetricsLog, finite
from orchestrator.trainer.pace import summary
from orchestrator.trainer.saver import Saver
from orchestrator.trainer.startup import Startup
from orchestrator.trainer.training import Result, Training, train_step
from orchestrator.trainer.utilization import Meter
from orchestrator.trainer.world import meet, shorten_timeout


def vote(run: Run, spec: TrainSpec, own_s: float | None = None) -> Notice | None:
    """Return the notice for which all ranks stop now, None if they go on. Collective.

    ``own_s`` is for how many seconds this rank was busy with the last step by itself.
    """
    wait = spec.timeouts_s
    return run.should_stop(timeout_s=wait.vote, term_timeout_s=wait.term_vote, own_s=own_s)


class Steps:
    """The steps of one attempt. All of its methods are collective."""

    def __init__(
        self,
        run: Run,
        training: Training,
        saver: Saver,
        evaluator: Evaluator | None,
        console: Console,
        startup: Startup,
    ) -> None:
        self._run, self._training, self._saver = run, training, saver
        self._evaluator, self._console, self._startup = evaluator, console, startup
        self._log = MetricsLog(run.env.run.metrics) if run.env.rank == 0 else None
        self._meter = Meter.of(training.model, training.spec, training.world)
        self._first = training.state.step
        self._ranks: dict[str, Any] = {}
        self._ended = 0.0  # when the last step ended, by perf_counter

    def take(self, *, after: Callable[[int], None]) -> Notice | None:
        """Take steps, calling ``after`` with the number of each.

        Returns:
            The notice that ended them; None after the last step, and what there was to measure.
        """
        notice = self._vote() or self._make_up()
        self._ended = time.perf_counter()
        while notice is None and self._left:
            notice = self._one(after)
        # What is still to be measured after the last step is left to the next attempt.
        return notice if self._left or self._owed else None

    @property
    def _left(self) -> bool:
        return self._training.state.step < self._training.spec.steps

    @property
    def _owed(self) -> bool:
        return self._evaluator is not None and self._training.state.eval_owed

    def _one(self, after: Callable[[int], None]) -> Notice | None:
        state = self._training.state
        started, position = time.perf_counter(), state.position
        result = train_step(self._training)
        blocked_s, self._ended = started - self._ended, time.perf_counter()
        self._run.heartbeat(state.step)
        line = self._line(result, position=position, step_s=self._ended - started)
        self._tell({**line, "blocked_s": blocked_s})
        if state.step == self._first + 1:
            self._after_the_first()
        after(state.step)
        notice = self._vote(result.own_s)
        self._ranks = summary(self._run.own_s, step=state.step)
        if notice is None and self._left and self._saver.due():
            self._saver.save_soon(reason="interval")
        return notice

    def _tell(self, line: dict[str, Any]) -> None:
        """Write the line of a step, with a validation where one is due."""
        cost = self._meter.read(line["tokens_per_s"]) if self._log else {}
        if self._evaluator is not None and self._evaluator.due():
            line = {**line, **self._evaluate(self._evaluator)}
            self._ended = time.perf_counter()  # its seconds are its own, and block nothing
        if self._log:
            self._log.write(**line, **cost, **self._ranks, **self._saver.news())
            self._console.step(line)

    def _after_the_first(self) -> None:
        """Do what had to wait for compilation and the first collectives."""
        training = self._training
        self._startup.mark("first_step")
        self._startup.tell(self._run, self._console)
        meet(training.world, training.spec)
        shorten_timeout(training.spec)
        if training.spec.compile:
            save_caches(self._run.env)
            self._console.say(describe_compilation())
        self._saver.prepare()

    def _make_up(self) -> Notice | None:
        """Measure what the attempt before had to leave out, with the same weights."""
        if self._evaluator is None or not self._owed:
            return None
        found = self._evaluate(self._evaluator)
        if self._log and found:
            self._log.add(found["eval"]["step"], **found)
        self._startup.mark("evaluation")
        return self._vote()

    def _evaluate(self, evaluator: Evaluator) -> dict[str, Any]:
        """Return `eval` for a line of metrics.jsonl; nothing if a notice came."""
        with self._run.busy("evaluating"):
            found = evaluator.measure(stop=lambda: self._vote() is not None)
        if found is None:
            return {}
        self._console.say(describe(found))
        return {"eval": found}

    def _vote(self, own_s: float | None = None) -> Notice | None:
        return vote(self._run, self._training.spec, own_s)

    def _line(self, result: Result, *, position: int, step_s: float) -> dict[str, Any]:
        """Return a line of metrics.jsonl. `samples` is the first position and how many follow."""
        training = self._training
        spec, state = training.spec, training.state
        return {
            "attempt": self._run.env.attempt,
            "step": state.step,
            "loss": finite(result.loss),
            "grad_norm": finite(result.grad_norm),
            "lr": result.lr,
            "tokens_per_s": spec.global_batch * spec.data.seq_len / step_s,
            "step_s": step_s,
            "samples": [position, spec.global_batch],
            "world_size": training.world.size,
            "data_wait_s": result.data_wait_s,
            "skipped": state.skipped,
            "at": time.time(),
        }
