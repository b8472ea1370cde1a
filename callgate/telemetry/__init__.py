"""Telemetry: own counters, exported through OpenTelemetry when somebody listens.

`names`, `stats` and `carrier` are pure. Only `tracing` and `exporter` import OpenTelemetry's
API; `spans` and `metrics` do so with them, unless nobody can listen (`nobody`).
"""
