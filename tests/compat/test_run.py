from __future__ import annotations

from tests.compat.run import constraints_for, environments


def test_what_an_environment_names_is_not_held_by_the_constraints() -> None:
    requirements = "# a comment\nMCP>=1.27,<2\npydantic_core\n"
    constraints = "mcp==2.3.0\nmcp-types==2.3.0\npydantic-core==2.50.4\nanyio==4.16.0\n"

    assert constraints_for(requirements, constraints) == "mcp-types==2.3.0\nanyio==4.16.0\n"


def test_every_environment_is_found_by_its_requirements() -> None:
    assert "mcp_v1" in environments()
