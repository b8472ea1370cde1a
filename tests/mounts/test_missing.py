"""What somebody reads whose runtime is not there, or too old."""

from __future__ import annotations

from importlib.metadata import version

from callgate.mounts.common import missing_extra


def test_a_runtime_that_is_not_there_is_named_with_the_version_that_it_takes() -> None:
    text = str(missing_extra("callgate.mounts.crewai", "crewai", "crewai"))

    assert "needs crewai>=1.15.16, which is not installed" in text
    assert "pip install --upgrade 'callgate[crewai]'" in text


def test_a_runtime_that_is_too_old_is_told_both_versions() -> None:
    text = str(missing_extra("callgate.mounts.claude_agent", "claude-agent-sdk", "claude-agent"))

    assert "needs claude-agent-sdk>=0.2.180; " in text
    assert f"claude-agent-sdk {version('claude-agent-sdk')} is installed" in text
