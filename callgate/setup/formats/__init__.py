"""Configuration formats: a text becomes nodes that know their positions in it.

`nodes` is what all share; `jsonc`, `toml` and `yaml` each read one format. Pure.
"""
