"""Delivers one alert, in a child process: a delivery that hangs or crashes ends with it.

    python -m probe.server.alerts.alert_sender        one JSON object on stdin, one on stdout

`{"check": [URL, …]}` is answered with `{"bad": [number, …]}`, the invalid ones. `{"url", "title", "body",
"kind"}` is answered with `{"delivered": true}` or `{"error": "…"}`. Only this module imports Apprise; its log
is discarded, because it may contain a URL. It runs at normal priority: it takes a third of a second, rarely.
"""

from __future__ import annotations

import json
import sys
from typing import Any

MISSING = "missing"
"""The error if Apprise is not installed."""


def main() -> int:
    """Answer one request."""
    request = json.loads(sys.stdin.buffer.read())
    try:
        import apprise
    except ImportError:
        answer: dict[str, Any] = {"error": MISSING}
    else:
        answer = _check(apprise, request["check"]) if "check" in request else _deliver(apprise, request)
    sys.stdout.write(json.dumps(answer))
    return 0


def _check(apprise: Any, urls: list[str]) -> dict[str, Any]:
    made = [apprise.Apprise.instantiate(url, suppress_exceptions=True) for url in urls]
    return {"bad": [number for number, one in enumerate(made) if one is None]}


def _deliver(apprise: Any, request: dict[str, Any]) -> dict[str, Any]:
    sender = apprise.Apprise(asset=apprise.AppriseAsset(app_id="probe", app_desc="probe", app_url=""))
    if not sender.add(request["url"]):
        return {"error": "not a destination URL"}
    delivered = sender.notify(
        title=request["title"], body=request["body"], notify_type=request["kind"], body_format="text"
    )
    return {"delivered": True} if delivered else {"error": "the destination did not accept it"}


if __name__ == "__main__":
    sys.exit(main())
