"""Telemetry: own counters, exported through OpenTelemetry when somebody listens.

`names`, `stats` and `carrier` are pure and cost no import; `metrics` and `spans` need
`opentelemetry-api`. So this package re-exports nothing: import the module you need.
"""
