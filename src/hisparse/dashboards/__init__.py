"""Grafana dashboard and Prometheus alert rules, generated from the catalogue of metrics.

The generated files are in ``dashboards/`` of the source tree; making them again, with other thresholds or another
runbook, needs the extra ``dashboards``::

    from hisparse.dashboards import AlertSettings, dashboard_json, rules_yaml

    rules_yaml(AlertSettings(hit_ratio=0.8), runbook="https://wiki.example/hisparse")
    dashboard_json()
"""

from hisparse.dashboards.alerts import Alert, AlertSettings, alerts, rules_yaml
from hisparse.dashboards.grafana import dashboard_json
from hisparse.dashboards.panels import Panel, Query, Section, sections
from hisparse.dashboards.queries import Scope

__all__ = [
    "Alert",
    "AlertSettings",
    "Panel",
    "Query",
    "Scope",
    "Section",
    "alerts",
    "dashboard_json",
    "rules_yaml",
    "sections",
]
