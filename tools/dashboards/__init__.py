"""The dashboards for Grafana, and the copies of them and of the alerts in the Helm chart: see `__main__`."""
