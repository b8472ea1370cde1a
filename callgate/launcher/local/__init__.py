"""The built-in launcher: runs of this host, in callgate's own process.

`local_launcher` plans, prepares and keeps runs; `local_run` is the life of one, whatever
contains it: `run_resources` (a warden, a directory that `workspace` keeps, a group) or,
where there is no fork, `portable_launcher`'s tree of processes. `warden_client` speaks with
a warden, `warden_job` tells it what to do, `stdio` has the ends of the streams. `monitor` is
the one task that samples all runs: `usage_readers` and `workspace_usage` measure, `limit_check`
compares.
"""
