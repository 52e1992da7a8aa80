"""Classes the snippets that come as a JSON list on stdin, in any Python, and prints their classes as JSON."""

from __future__ import annotations

import ast
import json
import sys

from probe.job.snippets.guard.classify import classify


def main() -> None:
    """Without a job: no names but Python's own."""
    judged = [classify(ast.parse(code), {}) for code in json.load(sys.stdin)]
    print(json.dumps([[one.kind, [finding.why for finding in one.findings]] for one in judged]))


if __name__ == "__main__":
    main()
