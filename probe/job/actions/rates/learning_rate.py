"""lr: shows an optimizer's learning rates, scales its schedule, or holds a rate, and checks the effect.

A scheduler of torch is rescaled where it keeps its rates (`schedules`): this survives detaching and is in the
job's own checkpoints. If a rate is held against a schedule, or computed by unknown code, a rule replaces it
(`rate_rules`) while probe is in the process. The next steps are then watched (`rate_watch`). Standard library
only.
"""

from __future__ import annotations

import math
import statistics
import threading
import weakref
from typing import Any

from probe.base.errors import ActionRefused, BadRequest
from probe.job.actions.action import Action, Site, enumerated, number, whole_number
from probe.job.actions.chosen_optimizer import NAMED, Chosen, choose, refuse_alone, schedulers_of
from probe.job.actions.device import capturing, is_tensor, on_device
from probe.job.actions.rates import rate_words, schedules
from probe.job.actions.rates.rate_rules import Rule, Rules, rules_of
from probe.job.actions.rates.rate_watch import STEPS, RateWatch, Written
from probe.job.actions.rates.schedules import Change, to_float

FAR = 10.0
"""Rates beyond this many times the present one need `force`."""
LONGEST_WATCH_S = 10.0
"""The answer comes after this time at the latest, even if fewer steps were seen."""
_WATCHING: weakref.WeakSet[Lr] = weakref.WeakSet()


class Lr(Action):
    """Shows the rates, or changes them once."""

    name = "lr"
    takes = ("scale", "set", "group", "optimizer", "force")
    ends_on_training_thread = True  # during a step, the held rate is in the group

    def __init__(self, arguments: dict[str, Any], site: Site) -> None:
        super().__init__(arguments, site)
        self._chosen: Chosen = choose(site, arguments.get("optimizer"))
        optimizer = self._chosen.optimizer()
        self._schedulers = [weakref.ref(one) for one in schedulers_of(site, optimizer)]
        self._groups = _groups(optimizer, arguments)
        self.reading = "scale" not in arguments and "set" not in arguments
        self._scales = "scale" in arguments
        self._value = 0.0
        self._before: list[float] = []
        self._now: list[float] = []
        self._how = ""
        self._change: Change | None = None
        self._ruled = False
        self._watch: RateWatch | None = None
        self._seen: RateWatch | None = None
        self._overwritten: list[Written] = []
        self._deciding = threading.Lock()
        """Held by the thread that ends the watch; the training thread never waits for it."""
        self._notes: list[str] = []
        if not self.reading:
            self._value = self._requested_value()
            if not any(on_device(rate) for group in optimizer.param_groups for rate in group.values()):
                self._refuse_far(optimizer)  # else `begin` checks: the agent never waits for a device
            refuse_alone(site, arguments, "its replicas on the other ranks would drift away from it")
            self.waits_s = _watching_s(site)

    def _requested_value(self) -> float:
        """The requested factor or rate."""
        arguments = self.arguments
        if self._scales and "set" in arguments:
            raise BadRequest("`scale` and `set` are mutually exclusive")
        return number(arguments, "scale", above=True) if self._scales else number(arguments, "set")

    def _refuse_far(self, optimizer: Any) -> None:
        """Refuse a rate that is many times the present one, unless forced: it is probably a typo."""
        if self.arguments.get("force"):
            return
        hint, value = "`--force` does it anyway.", self._value
        if self._scales and value > FAR:
            raise BadRequest(
                f"{value:g} times the present rate is above the limit of {FAR:g} times", hint=hint
            )
        for index in [] if self._scales else self._groups:
            group = optimizer.param_groups[index]
            present = max(to_float(group[key]) for key in ("lr", "initial_lr", "max_lr") if key in group)
            if value > FAR * present:
                raise BadRequest(
                    f"{value:g} is more than {FAR:g} times the rate of group {index}, {present:g}", hint=hint
                )

    # The training thread ----------------------------------------------------

    def begin(self) -> None:
        """Rescale the schedule, write the rate, or add a rule; nothing if only shown."""
        if self.reading:
            return
        optimizer = self._chosen.optimizer()
        rules, schedulers = rules_of(optimizer), self._alive()
        scheduled = [optimizer.param_groups[index]["lr"] for index in self._groups]
        if any(capturing(rate) for rate in scheduled):
            raise ActionRefused("a device graph is being captured")
        self._refuse_far(optimizer)
        self._before = self._in_use(optimizer)
        change = None if rules.on(self._groups) else self._plan(optimizer, schedulers)
        if self._scales and not rules.on(self._groups):
            self._refuse_vanishing(optimizer)
        _end_watches(optimizer)
        if change is None:
            self._rule(rules)
        else:
            change.apply()
            self._change = change
        self._now = self._in_use(optimizer)
        factor = self._value if self._scales else None
        self._watch = self._seen = RateWatch(optimizer, schedulers, self._groups, factor)
        self.standing = True
        _WATCHING.add(self)

    def _plan(self, optimizer: Any, schedulers: list[Any]) -> Change | None:
        """The change of the numbers that rates are computed from; None if a rule is needed."""
        kinds = rate_words.kinds(schedulers)
        if not self._scales:
            if schedulers:
                self._how = f"held while {kinds} continues underneath"
                return None
            places = schedules.places_of_groups(optimizer, self._groups, ("lr", "initial_lr"))
            return Change.set(places, self._value)
        obstacle = schedules.obstacle(optimizer, schedulers, self._groups)
        if obstacle is not None:
            self._how = f"each step's rate is multiplied ({obstacle})"
            return None
        if schedulers:
            self._how = f"{kinds} keeps its shape, times {self._value:g}"
        left = schedules.left_alone(optimizer, schedulers, self._groups)
        if left:
            self._notes.append(f"{', '.join(left)} is one number for all groups, and stays as it was")
        places = schedules.places_of_schedule(optimizer, schedulers, self._groups)
        return Change.scale(places, self._value)

    def _refuse_vanishing(self, optimizer: Any) -> None:
        places = schedules.places_of_groups(optimizer, self._groups, ("lr", "initial_lr"))
        if Change.scale(places, self._value).vanishing():
            raise ActionRefused(
                f"a rate times {self._value:g} cannot be represented", hint="`--set 0` stops the learning."
            )

    def _rule(self, rules: Rules) -> None:
        if not self._how:
            self._how = "on top of the earlier change"
        rules.add(Rule(self, frozenset(self._groups), self._scales, self._value))
        self._ruled = True

    def before_step(self, optimizer: Any) -> None:
        """Put the ruled rates in place; check the rates that the step is about to use."""
        if optimizer is not self._chosen.reference():
            return
        rules = rules_of(optimizer)
        rules.before(self, optimizer)
        if self._watch is not None and self._deciding.acquire(blocking=False):
            try:
                self._check_rates(optimizer, rules)
            finally:
                self._deciding.release()

    def _check_rates(self, optimizer: Any, rules: Rules) -> None:
        watch = self._watch
        if watch is None or _captured(optimizer):
            return
        if not self._ruled:
            found = watch.overwritten(optimizer, self.site.recorder.counted_step)
            if found:
                self._overwritten += found
                self._change_to_rule(optimizer, rules, {written.group for written in found})
        watch.begins(optimizer)

    def _change_to_rule(self, optimizer: Any, rules: Rules, overwritten: set[int]) -> None:
        """The job's own code writes the rate: let a rule change it during each step instead."""
        if self._change is not None:
            self._change.undo(
                lambda place: place.in_group and place.name == "lr" and place.item in overwritten
            )
            self._change = None
        how = f"multiplied by {self._value:g}" if self._scales else f"replaced by {self._value:g}"
        self._how = f"the job's own code writes the rate, which is {how} for each step"
        self._rule(rules)
        rules.lend(optimizer)

    def after_step(self, optimizer: Any) -> None:
        """Note the rate that it used; put back the scheduled one."""
        if optimizer is not self._chosen.reference():
            return
        watch = self._watch
        if watch is not None and not _captured(optimizer):
            watch.ends(optimizer, self.site.recorder.counted_step)
            if watch.complete:
                self._end_watch()
        rules_of(optimizer).after(self)

    def is_about(self, optimizer: Any) -> bool:
        """Whether it changes the rates of this optimizer."""
        return self._chosen.reference() is optimizer

    def stop_watching(self) -> None:
        """Stop watching, as another action of ours changes the rates: later writes mean nothing."""
        with self._deciding:
            self._end_watch()

    def _end_watch(self) -> None:
        """Stop watching; a rule stays."""
        self._watch = None
        self.standing = self._ruled
        self.finished.set()

    def undo(self) -> str:
        """Restore the rates as they would be without this change."""
        optimizer = self._chosen.reference()
        if optimizer is None:
            return "the optimizer is gone, and its rates with it"
        self.stop_watching()
        _end_watches(optimizer)
        kinds = rate_words.kinds(self._alive())
        if self._ruled:
            rules_of(optimizer).remove(self)
            self._ruled = False
            now = f"{kinds or 'the schedule'} is in force again"
        elif self._change is not None:
            moved = "lr" in self._change.undo()
            if moved and not self._scales:
                now = "the job has written another rate since, which stays"
            else:
                now = f"{kinds} is as it was" if kinds else "as before"
        else:
            now = "nothing had been changed"
        rates = [to_float(optimizer.param_groups[index]["lr"]) for index in self._groups]
        return f"{self._chosen.name}: lr {rate_words.listed(rates)}; {now}"

    def cancel(self) -> None:
        """End a rule; a rescaled schedule stays rescaled."""
        optimizer = self._chosen.reference()
        self.standing = False
        self.finished.set()
        if optimizer is not None and self._ruled:
            rules_of(optimizer).remove(self)

    # The request's thread ---------------------------------------------------

    def report(self) -> dict[str, Any]:
        """The rates before and now, and those that the steps since have used."""
        optimizer = self._chosen.optimizer()
        if self.reading:
            return self._shown(optimizer)
        self.stop_watching()
        seen = self._seen
        used = [] if seen is None else seen.used
        change = f"{self._chosen.name}: lr {rate_words.listed(self._before)} → {rate_words.listed(self._now)}"
        if len(self._groups) < len(optimizer.param_groups):
            change += f" in group {self._groups[0]}"
        return {
            "what": "; ".join(filter(None, [change, self._how, rate_words.used_in_words(used)])),
            "notes": [*self._notes, *self._warnings(optimizer)],
            "optimizer": self._chosen.name,
            "class": type(optimizer).__name__,
            "schedulers": [type(one).__name__ for one in self._alive()],
            "kept_by": "rule" if self._ruled else "schedule" if self._schedulers else "group",
            "steps": [step for step, _ in used],
            "groups": [
                {
                    "group": index, "before": self._before[number], "now": self._now[number],
                    "used": [rates[number] for _, rates in used],
                }
                for number, index in enumerate(self._groups)
            ],
            "overwritten": [written._asdict() for written in self._overwritten],
            "written_inside_step": [written._asdict() for written in seen.inside] if seen is not None else [],
        }

    def _warnings(self, optimizer: Any) -> list[str]:
        notes = []
        if self._overwritten:
            wrote = rate_words.written(rate_words.first_of_each_group(self._overwritten))
            notes.append(f"the job's own code wrote {wrote}; its rate is put back after each step")
        seen = self._seen
        if seen is not None and seen.inside:
            wrote = rate_words.written(rate_words.first_of_each_group(seen.inside))
            notes.append(
                f"the step of {type(optimizer).__name__} itself wrote {wrote}: this overrides the request"
            )
        if seen is not None and seen.continued:
            wrote = rate_words.written(rate_words.first_of_each_group(seen.continued))
            notes.append(f"the job's own code continues from the new rate: it wrote {wrote}")
        if self._ruled:
            notes.append("it ends when probe leaves the process; undoing it returns to the schedule")
        elif not self._schedulers:
            notes.append(
                "no scheduler of torch drives this optimizer: if the job's own code writes the rate later, "
                "such as at the end of an epoch, that rate applies"
            )
        if self._chosen.others and self.arguments.get("optimizer") is None:
            notes.append(f"other optimizers keep their rates: {enumerated(self._chosen.others, NAMED)}")
        return notes

    def _shown(self, optimizer: Any) -> dict[str, Any]:
        rules, groups, words = rules_of(optimizer), optimizer.param_groups, rate_words.of_group
        rates = [rules.scheduled(index, groups[index]["lr"]) for index in self._groups]
        used = [to_float(rules.used(index, rate)) for index, rate in zip(self._groups, rates, strict=True)]
        what = f"{self._chosen.name} ({type(optimizer).__name__}): lr {rate_words.listed(used)}"
        kinds, others = rate_words.kinds(self._alive()), self._chosen.others
        return {
            "what": f"{what}; {kinds}" if kinds else f"{what}; no scheduler of torch",
            "notes": [f"other optimizers: {enumerated(others, NAMED)}"] if others else [],
            "optimizer": self._chosen.name,
            "class": type(optimizer).__name__,
            "others": others,
            "groups": [
                {"group": index, "lr": rate, "scheduled": to_float(scheduled), **words(groups[index])}
                for index, rate, scheduled in zip(self._groups, used, rates, strict=True)
            ],
            "schedulers": [rate_words.of_scheduler(one) for one in self._alive()],
        }

    # ------------------------------------------------------------------------

    def _alive(self) -> list[Any]:
        return [one for reference in self._schedulers if (one := reference()) is not None]

    def _in_use(self, optimizer: Any) -> list[float]:
        """The rates that a step would use now."""
        rules, groups = rules_of(optimizer), optimizer.param_groups
        rates = [(index, rules.scheduled(index, groups[index]["lr"])) for index in self._groups]
        return [to_float(rules.used(index, rate)) for index, rate in rates]


def _groups(optimizer: Any, arguments: dict[str, Any]) -> list[int]:
    """The requested groups: one, or all."""
    groups = optimizer.param_groups
    indexes = list(range(len(groups)))
    if arguments.get("group") is not None:
        index = whole_number(arguments, "group")
        if index not in indexes:
            raise BadRequest(
                f"there is no group {index}", hint=f"The optimizer has {len(groups)}, counted from 0."
            )
        indexes = [index]
    for index in indexes:
        rate = groups[index].get("lr")
        if not is_tensor(rate) and not math.isfinite(to_float(rate)):
            raise ActionRefused(f"group {index} of {type(optimizer).__name__} has no learning rate")
    return indexes


def _watching_s(site: Site) -> float:
    """How long to watch: twice the usual time of the next steps, within limits."""
    walls_s = [wall_ns / 1e9 for wall_ns, *_ in site.recorder.recent]
    if not walls_s:
        return LONGEST_WATCH_S
    return min(LONGEST_WATCH_S, max(3.0, 2 * STEPS * statistics.median(walls_s)))


def _end_watches(optimizer: Any) -> None:
    """End the watches of other actions on this optimizer."""
    for other in list(_WATCHING):
        if other.is_about(optimizer):
            other.stop_watching()


def _captured(optimizer: Any) -> bool:
    return any(capturing(group["lr"]) for group in optimizer.param_groups)
