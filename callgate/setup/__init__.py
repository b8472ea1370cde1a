"""Put the gate in front of the servers that MCP clients start, and take it away again.

Who lives where: `clients` is the table of where each client keeps its servers; `formats` reads a
text into nodes with exact positions; `servers` says what an entry is and which splices wrap or
unwrap it; `plan` makes a change of a whole file and proves that it can be undone. These are pure.
`config_file` reads and replaces files, `records` keeps what an undo needs, `program` finds the
`callgate` program, `first_policy` writes the first policy, `work` joins all of it.
"""
