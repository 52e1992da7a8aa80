"""Early decision: whether half of the evidence already determines the verdict, so that nobody waits longer.

    evidence = gather(pid, meta, …, enough=partial(settled, thresholds=thresholds))

Two facts are certain after a fifth of a second: that steps continue (from the rings), and that nothing in the
process moves (from the kernel). Any other verdict needs the whole window. Pure. Standard library only.
"""

from __future__ import annotations

from probe.diagnose import states
from probe.diagnose.process import stack_patterns
from probe.diagnose.process.evidence import WINDOW_S, Evidence
from probe.diagnose.process.process_rules import diagnose_process
from probe.diagnose.process.stall_thresholds import DEFAULTS, Case, usual_quiet_s
from probe.diagnose.stall_parameters import StallThresholds

_LEAST_SAMPLES = 2
"""A single sample cannot show whether a stack changes."""


def settled(evidence: Evidence, thresholds: StallThresholds = DEFAULTS) -> bool:
    """Whether further samples cannot change the verdict on the process."""
    case = Case(evidence, thresholds)
    return _goes_on(case) or _rests(case)


def _goes_on(case: Case) -> bool:
    """Whether steps end as usual without signs of CPU shortage, which a longer window measures better."""
    p, thread = case.progress, case.training
    if p is None or p.usual_step_s is None or case.quiet_s is None or thread is None:
        return False
    if case.evidence.state in ("stopped", "traced") or case.quiet_s > usual_quiet_s(p, case.thresholds):
        return False
    waited = max(thread.run_delay_ratio or 0.0, case.evidence.throttled_ratio or 0.0)
    return waited < case.thresholds.starved_window_ratio / 2


def _rests(case: Case) -> bool:
    """Whether nothing in the process moves, and the training thread has not moved for a whole window: then
    its stack was the same, and it held or lacked the GIL, all that time. A thread that only waits for input
    need not have been still that long."""
    e, thread = case.evidence, case.training
    if thread is None or not thread.still or e.samples < _LEAST_SAMPLES or e.workers:
        return False
    others = [one for one in e.threads if one is not thread]
    moves = any(one.changed for one in others if not str(one.name).startswith("probe-"))
    if moves or (e.cpu_ratio or 0.0) > case.thresholds.rest_ratio:
        return False
    # Other threads were not observed before: one may just have taken a lock or the GIL.
    if any(one.held_gil or stack_patterns.mutex_wait(one) for one in others):
        return False
    if (e.still_s or 0.0) >= WINDOW_S:
        return True
    return diagnose_process(e, case.thresholds).state == states.IDLE
