"""The server of the campaign `http`: without rate limits, so that thousands of requests can be sent.

With the argument `faulty` it answers wrongly in two places, which the control must find.
"""

from __future__ import annotations

import sys
from typing import Any


def main() -> None:
    """Run the server."""
    from probe.server import __main__
    from probe.server.http import app, auth
    from probe.server.runtime import allowance

    allowance.REQUESTS_PER_S = 1e9
    allowance.BURST = 10**9
    auth.FAILURES_PER_MINUTE = 10**9
    if sys.argv[1:] == ["faulty"]:
        right = app.build

        def build(*given: Any, **named: Any) -> Any:
            made = right(*given, **named)

            @made.middleware("http")
            async def wrong(request: Any, answer: Any) -> Any:
                if request.url.path == "/v1/health":
                    from fastapi.responses import JSONResponse

                    return JSONResponse({"status": "ok", "pid": "none"})
                if request.url.path == "/v1/peers":
                    raise ValueError("planted")
                return await answer(request)

            return made

        app.build = build
    __main__.main()


if __name__ == "__main__":
    main()
