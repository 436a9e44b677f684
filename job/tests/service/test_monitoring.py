"""The alerts and the dashboard in job/examples/monitoring: that they speak of our metrics, and of all of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import pytest

pytest.importorskip("prometheus_client")

from job.tests.support.observations import observed
from tensorwire_job.model import Code, Confidence, Life
from tensorwire_job.service.metrics import JobCollector
from tensorwire_job.service.service import View

MONITORING = Path(__file__).resolve().parents[3] / "job/examples/monitoring"
ALERTS = MONITORING / "alerts.yml"
LABELS = {"code": get_args(Code), "life": get_args(Life), "confidence": tuple(level.value for level in Confidence)}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="it needs promtool, of the Debian package prometheus"
)


def exported() -> set[str]:
    """The names of all metrics as Prometheus has them."""
    collector = JobCollector()
    collector.show(View(observed(1.0, [])))
    return {family.name + "_total" * (family.type == "counter") for family in collector.collect()}


def loaded(path: Path) -> Any:
    return pytest.importorskip("yaml").safe_load(path.read_text())


def rules() -> list[dict[str, Any]]:
    return [rule for group in loaded(ALERTS)["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
    return found


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dashboard()["panels"]
    return found


def expressions() -> list[str]:
    """The expressions of the dashboard, as Grafana would send them."""
    written = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [text.replace("$instance", ".*").replace("$__rate_interval", "1m") for text in written]


def test_every_metric_is_used_and_every_name_is_a_metric() -> None:
    told = [text for rule in rules() for text in (rule["expr"], *rule["annotations"].values())]
    named = {name for text in [*told, *expressions()] for name in re.findall(r"\btensorwire_\w+", text)}
    assert named == exported()


def test_labels_have_values_that_there_are() -> None:
    matched = re.findall(r'\b(code|life|confidence)=~?"([^"]*)"', ALERTS.read_text() + "\n".join(expressions()))
    assert matched
    for label, values in matched:
        assert set(values.split("|")) <= set(LABELS[label])
    alerted = {code for label, values in matched if label == "code" for code in values.split("|")}
    assert alerted == set(get_args(Code)), "every finding has an alert"


def test_every_alert_is_tested() -> None:
    tests = loaded(MONITORING / "alerts_test.yml")["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    for rule in rules():
        fires = [bool(case.get("exp_alerts")) for case in cases if case["alertname"] == rule["alert"]]
        assert any(fires), f"{rule['alert']} never fires"
        if "for" in rule:
            assert not all(fires), f"{rule['alert']} is not seen to wait"


def test_panels_are_drawn_beside_each_other() -> None:
    places = [(panel["title"], panel["gridPos"]) for panel in panels()]
    assert len({panel["id"] for panel in panels()}) == len(places)
    for _, place in places:
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
    for (one, a), (other, b) in combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or above, f"{one} lies over {other}"


def test_panels_name_no_data_source_of_ours() -> None:
    """A person chooses one when importing the dashboard."""
    variables = {variable["name"] for variable in dashboard()["templating"]["list"]}
    for panel in panels():
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard()))) - {"__rate_interval", "__all"}
    assert used == variables


@needs_promtool
@pytest.mark.parametrize(
    "command",
    [["check", "rules", "alerts.yml"], ["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]],
    ids=" ".join,
)
def test_promtool_takes_them(command: list[str]) -> None:
    ran = subprocess.run(["promtool", *command], cwd=MONITORING, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@needs_promtool
def test_prometheus_reads_the_dashboard(tmp_path: Path) -> None:
    """Each expression as a rule: promtool reads those."""
    numbered = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions())]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": numbered}]}))
    ran = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    path.write_text(path.read_text().replace("} > 0", "} >> 0"))
    assert subprocess.run(["promtool", "check", "rules", path], capture_output=True, check=False).returncode != 0
