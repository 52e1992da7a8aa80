"""The files for Prometheus and Grafana: they name metrics, labels, tables and columns that there are."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any
from urllib.parse import urlencode

import pytest

from harness import ROOT
from probe.server.http.metrics import LABELS
from server.beside import Beside, Writer
from server.test_pages import ask

FOLDER = ROOT / "docs" / "deploy" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "training.json").read_text())
PROMETHEUS = FOLDER.with_name("prometheus")
RULES = (PROMETHEUS / "alerts.yml").read_text()
MORE_LABELS = {"phase", "quantile", "severity", "outcome"}


def targets(kind: str) -> Iterator[dict[str, Any]]:
    """What the dashboard asks sources of this kind."""
    for panel in DASHBOARD["panels"]:
        assert panel["targets"] and all(one["datasource"] == panel["datasource"] for one in panel["targets"])
        yield from (one for one in panel["targets"] if kind in one["datasource"]["type"])


def expressions() -> list[str]:
    """All PromQL, of the dashboard and of the rules."""
    variables = [one["query"]["query"] for one in DASHBOARD["templating"]["list"]]
    return [*(one["expr"] for one in targets("prometheus")), *variables, *re.findall(r"expr: (.*)", RULES)]


@pytest.mark.one_server
def test_every_metric_and_label_of_the_files_is_one_that_is_served(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    record(job="gpt").tell("write 3")
    beside.start()
    served: set[str] = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", beside.text("/metrics")[2], re.MULTILINE):
        served |= {name, *([f"{name}_sum", f"{name}_count"] if kind == "summary" else [])}
    found = expressions()
    assert len(found) > 15
    for expression in found:
        named = set(re.findall(r"\bprobe_[a-z_]+", expression))
        assert named and named <= served, expression
        labels = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression)
        labels += [one for group in re.findall(r"\b(?:by|on) \(([\w, ]+)\)", expression)
                   for one in group.split(", ")]
        assert set(labels) <= {*LABELS, *MORE_LABELS}, expression
        assert expression.count("(") == expression.count(")")
    shown = [*re.findall(r"\$labels\.(\w+)", RULES)]
    legends = " ".join(one["legendFormat"] for one in targets("prometheus"))
    shown += re.findall(r"{{(\w+)}}", legends)
    assert set(shown) <= {*LABELS, *MORE_LABELS}


@pytest.mark.one_server
def test_every_query_of_the_dashboard_is_answered_with_the_columns_that_it_shows(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    record(job="gpt").tell("write 3")
    beside.start()
    asked = list(targets("infinity"))
    assert len(asked) == 2
    for one in asked:
        options = one["url_options"]
        assert (one["type"], one["source"], options["method"]) == ("csv", "url", "GET")
        parameters = {pair["key"]: pair["value"].replace("$job", "gpt") for pair in options["params"]}
        headers = {pair["key"]: pair["value"] for pair in options["headers"]}
        answer = ask(beside, f"{one['url']}?{urlencode(parameters)}", **headers)
        assert answer.status == 200, answer.body
        [names, *rows] = csv.reader(answer.body.decode().splitlines())
        assert names == [column["selector"] for column in one["columns"]]
        assert json.loads(answer.headers["probe-notes"]) == []
        assert rows or "probe.verdicts" in parameters["sql"]


def test_the_dashboard_is_whole() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    sources = (FOLDER / "datasources.yml").read_text()
    for panel in panels:
        place, source = panel["gridPos"], panel["datasource"]
        assert place["x"] + place["w"] <= 24 and panel["title"]
        assert f"uid: {source['uid']}\n    type: {source['type']}\n" in sources
        assert len({one["refId"] for one in panel["targets"]}) == len(panel["targets"])
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_nothing_secret_and_no_other_host_is_in_the_files() -> None:
    for file in sorted([*FOLDER.iterdir(), *PROMETHEUS.iterdir()]):
        text = file.read_text()
        assert set(re.findall(r"https?://([\w.]+)", text)) <= {"127.0.0.1"}
        assert not re.search(r"[Tt]oken: (?!\$)\S", text)
