"""What this host is and has, found out by asking it: IO, in callgate's own process.

`survey` fills in the capabilities that a plan is made from, with `cgroup_site` for where
groups can be made, `seccomp` for the filter (`syscalls` is its list), and `trial` for whatever
only doing can tell; `causes` names why a host forbids it. `command` finds a program and what
it reaches, `cgroup` makes, reads and removes a control group, `process_tree` finds and kills
descendants, and `lean_process` says how a process of the `warden` room is started. Builds on
`plan` and on `warden`'s system calls; knows nothing of runs.
"""
