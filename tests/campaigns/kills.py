"""Kills processes at random moments, and breaks the disk: no row may be lost silently, nothing stay held.

Parts (`--part`): `jobs` under load with wrapping rings, `servers`, `workers` during a query, `commands`
during an action, `starts` of many commands at once without a server, reused `pids`, and `disks` that are
full, without inodes, read-only or deleted. Without a part the rounds cycle through all of them. With
`--control` each part plants its own fault and must find it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from agent.nursery import Nursery
from campaigns.campaign import Campaign
from campaigns.kill_commands import kill_commands, start_at_once
from campaigns.kill_disks import lose_the_disk
from campaigns.kill_ledger import kill_jobs, kill_servers, kill_workers
from campaigns.kill_pids import use_pids_again

PARTS: dict[str, tuple[int, Callable[[Campaign, int, Nursery], None]]] = {
    "jobs": (10, kill_jobs),
    "servers": (5, kill_servers),
    "workers": (5, kill_workers),
    "commands": (5, kill_commands),
    "starts": (3, start_at_once),
    "pids": (3, use_pids_again),
    "disks": (12, lose_the_disk),
}
"""Rounds of each part; a round kills twenty jobs, or ten of the others."""


def plan() -> list[str]:
    """The part of each round, spread evenly, so that a few rounds cover everything."""
    places = [
        ((number + 0.5) / rounds, part)
        for part, (rounds, _) in PARTS.items() for number in range(rounds)
    ]
    return [part for _, part in sorted(places)]


def main() -> int:
    """Run the rounds; 0 if nothing was found, or with --control if each part found its fault."""
    order = plan()
    campaign = Campaign("kills", __doc__, rounds=len(order))
    if campaign.part is not None:
        if campaign.part not in PARTS:
            sys.exit(f"no part {campaign.part!r}: {', '.join(PARTS)}")
        if campaign.rounds == len(order):
            campaign.rounds = PARTS[campaign.part][0]
        order = [campaign.part]
    elif campaign.control:
        order = list(PARTS)
    if campaign.control:
        campaign.rounds = len(order)
    nursery = Nursery()
    silent = []
    try:
        for number in campaign:
            part = order[number % len(order)]
            before = len(campaign.findings)
            began_s = time.monotonic()
            PARTS[part][1](campaign, number, nursery)
            campaign.count(f"rounds of {part}")
            print(f"round {number}: {part}, {time.monotonic() - began_s:.0f} s", flush=True)
            if campaign.control:
                silent += [part] if len(campaign.findings) == before else []
                del campaign.findings[before + 1 :]  # one finding per part is enough
    except KeyboardInterrupt:
        print("interrupted: these are the figures of the rounds so far", file=sys.stderr)
    finally:
        nursery.close()
    status = campaign.end()
    if silent:
        print(f"control: NOT FOUND in {', '.join(silent)}", file=sys.stderr)
    return status or int(bool(silent))
