"""Code that runs outside of callgate's process: a contract forbids it to import anything else.

Started with `-I -S` by `host.lean_process`, standard library only, and light, because every
launch pays for what is imported here (a test says what is too heavy):

- in the warden: `warden`, which forks; `warden_mounts` and `leftovers` before and after;
  `safe_path` and `special_files`, for what agents may have prepared;
  `tree`; `warden_messages` to callgate and back; `warden_stdlib` in the place of contextlib;
- in its fork, until exec: `shim`, with `libc` for the system calls that Python has not;
- in the sandbox, as code that is handed in, since callgate cannot be seen there:
  `sandbox_entry` and `landlock`, with `libc`, `shim` and `warden_messages`;
- in a process of their own: `trial_acts`, by which a survey and `doctor` try the host.

callgate's own process may use these modules as well; what crosses is plain data.
"""
