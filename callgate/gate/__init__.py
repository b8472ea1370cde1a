"""Front doors: the IO around peers. `pipes` moves bytes; `stdio` is `callgate run`."""
