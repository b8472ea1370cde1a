"""What callgate promises, where the promise comes from, and what proves it.

`test_requirements.py` checks it both ways: everything that is listed exists, every promise has a
proof and every source a promise, and every file of tests proves one of them. A number that
depends on the machine is proved by a benchmark, which fails when its ratio is not kept. What is
promised and not proved stands in `GAPS`, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Requirement:
    """A promise in our own words."""

    id: str
    claim: str
    sources: tuple[str, ...]
    """`design: …` is a heading of the design, `figures: …` a row of the numbers to reach, and
    the others are a capability and its part."""
    proofs: tuple[str, ...]
    """Node ids of tests, or `measured: benchmarks/…`."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that was promised and that nothing here proves."""

    claim: str
    source: str
    why: str


CORE: Final = (
    Requirement(
        "house.layers",
        "a layer imports only what is below it; pure modules know no clock and no IO",
        ("core: house",),
        (
            "tests/test_layering.py::test_a_pure_module_imports_no_clock_and_no_io",
            "tests/test_layering.py::test_a_pure_module_imports_no_impure_one_of_ours",
            "tests/test_layering.py::test_nobody_uses_what_has_hurt_others",
        ),
    ),
    Requirement(
        "house.budgets",
        "modules and functions stay short enough to read",
        ("core: house",),
        ("tests/test_layering.py::test_nothing_outgrows_its_reader",),
    ),
    Requirement(
        "house.skips",
        "what could not be tested is in one table, with the reason and what it takes",
        ("core: house",),
        (
            "tests/test_skips.py::test_everything_that_a_host_can_lack_has_a_remedy",
            "tests/test_skips.py::test_the_table_is_at_the_end_of_a_run",
        ),
    ),
    Requirement(
        "house.docs",
        "every example of the documentation works, every page is reachable, references are "
        "generated",
        ("core: house",),
        (
            "tests/docs/test_examples.py::test_everything_on_the_page_works",
            "tests/docs/test_examples.py::test_every_page_can_be_reached_from_the_index",
            "tests/docs/test_examples.py::test_every_link_to_a_file_leads_somewhere",
            "tests/docs/test_reference.py::test_a_page_says_what_the_code_says",
            "tests/docs/test_limits.py::test_a_page_has_the_four_parts",
            "tests/docs/test_limits.py::test_every_metric_on_a_page_is_one",
            "tests/docs/test_limits.py::test_every_event_and_code_on_a_page_is_one",
            "tests/docs/test_reference.py::test_the_list_of_errors_is_whole",
            "tests/policy/test_schema.py::test_the_reference_page_is_what_the_models_say",
            "tests/policy/test_schema.py::test_the_reference_page_has_every_key_of_the_schema",
            "tests/policy/test_keys.py::test_each_row_is_shown_by_the_page_and_says_its_sentence_to_editors",
            "tests/policy/test_keys.py::test_a_module_names_only_the_keys_that_it_has_a_reason_to_name",
        ),
    ),
    Requirement(
        "house.demo",
        "the in-process example keeps every claim it makes",
        ("core: house",),
        (
            "tests/test_in_process_example.py::test_every_claim_is_made_and_holds",
            "tests/test_in_process_example.py::test_the_quickstart_does_what_it_says",
        ),
    ),
    Requirement(
        "policy.errors",
        "every mistake at once, each with file, line, column, what was found and what to write",
        ("core: policy", "design: The policy file"),
        (
            "tests/policy/test_validate.py::test_every_mistake_is_named_at_once_each_at_its_own_place",
            "tests/policy/test_validate.py::test_each_mistake_says_what_was_found_and_what_to_write",
            "tests/policy/test_validate.py::test_problems_of_form_and_of_content_are_told_together",
            "tests/policy/test_validate.py::test_an_error_is_a_line_that_editors_can_jump_to",
        ),
    ),
    Requirement(
        "policy.suggestion",
        "what is misspelt is suggested",
        ("core: policy", "design: The policy file"),
        (
            "tests/policy/test_validate.py::test_what_is_misspelt_is_suggested",
            "tests/policy/test_units.py::test_a_duration_that_can_be_guessed_is_suggested",
            "tests/policy/test_units.py::test_a_size_that_can_be_guessed_is_suggested",
            "tests/policy/test_units.py::test_a_rate_that_can_be_guessed_is_suggested",
        ),
    ),
    Requirement(
        "policy.duplicates",
        "duplicate keys, merge keys and YAML 1.1 booleans are errors",
        ("core: policy", "design: The policy file"),
        (
            "tests/policy/test_source.py::TestKeys::test_a_duplicate_key_is_an_error_that_names_the_first",
            "tests/policy/test_source.py::TestKeys::test_a_merge_key_is_an_error",
            "tests/policy/test_source.py::TestScalars::test_a_boolean_of_yaml_1_1_is_an_error_with_the_word_to_write",
        ),
    ),
    Requirement(
        "policy.hostile",
        "exploding anchors, deep nesting and 10 MB files are errors in bounded time and memory",
        ("core: policy",),
        (
            "tests/policy/test_source.py::TestBounds::test_a_file_of_ten_megabytes_is_an_error_of_which_little_is_read",
            "tests/policy/test_source.py::TestBounds::test_values_are_counted_after_aliases",
            "tests/policy/test_source.py::TestBounds::test_nesting_ends_at_its_limit",
            "tests/policy/test_source.py::test_a_hostile_file_takes_no_longer_than_a_large_honest_one",
            "tests/policy/test_source.py::test_a_hostile_file_takes_bounded_memory",
            "tests/policy/test_source.py::test_any_text_is_a_policy_or_a_list_of_problems",
        ),
    ),
    Requirement(
        "policy.units",
        "durations, sizes, rates, processors, bandwidths as the design writes them",
        ("design: The policy file",),
        (
            "tests/policy/test_units.py::test_a_duration_survives_being_spelled",
            "tests/policy/test_units.py::test_any_value_is_a_number_of_units_or_a_unit_error",
            "tests/policy/test_units.py::test_a_duration_is_its_number_times_its_unit",
            "tests/policy/test_units.py::test_a_size_is_its_number_times_its_unit",
            "tests/policy/test_units.py::test_a_rate_survives_being_spelled",
            "tests/policy/test_units.py::test_millicores_are_what_they_say",
            "tests/policy/test_units.py::test_a_bandwidth_is_its_number_times_its_unit",
        ),
    ),
    Requirement(
        "policy.profiles",
        "`guarded` and `interactive` have the design's values, and a file that says nothing is "
        "guarded",
        ("design: The policy file",),
        (
            "tests/policy/test_precedence.py::test_the_profiles_have_the_designs_values",
            "tests/policy/test_precedence.py::test_a_policy_that_says_nothing_is_guarded",
        ),
    ),
    Requirement(
        "policy.precedence",
        "the most specific statement wins, then the lowest ceiling; scopes all apply",
        ("core: policy", "design: The policy file"),
        (
            "tests/policy/test_precedence.py::test_the_most_specific_statement_wins",
            "tests/policy/test_precedence.py::TestCeilings::test_the_lowest_of_all_that_apply_holds",
            "tests/policy/test_precedence.py::test_rates_of_different_scopes_all_apply",
            "tests/policy/test_precedence.py::test_concurrencies_of_different_scopes_all_apply",
            "tests/policy/test_precedence.py::TestCeilings::test_the_star_is_a_template_for_unnamed_callers_only",
        ),
    ),
    Requirement(
        "policy.patterns",
        'patterns match the requested name, listed or not; the longest wins; `"*": deny` makes '
        "an allow-list",
        ("design: The policy file",),
        (
            "tests/policy/test_patterns.py::test_a_glob_matches_what_its_definition_matches",
            "tests/policy/test_patterns.py::test_patterns_match_names_that_nobody_listed",
            "tests/policy/test_patterns.py::TestKey::test_of_several_patterns_the_longest_wins_wherever_it_stands",
            "tests/policy/test_patterns.py::test_a_star_that_denies_makes_an_allow_list",
            "tests/policy/test_patterns.py::TestKey::test_no_name_of_a_peer_becomes_a_key",
            "tests/policy/test_patterns.py::test_each_listed_tool_under_a_glob_has_its_own_bucket_and_all_others_share_one",
        ),
    ),
    Requirement(
        "policy.modes",
        "enforce, shadow and off on the whole policy, an agent, a caller, a tool or one limit",
        ("core: policy", "core: limits", "design: Limits"),
        (
            "tests/policy/test_modes.py::TestCeilings::test_a_lower_ceiling_in_shadow_leaves_the_enforced_one",
            "tests/policy/test_modes.py::test_a_policy_in_shadow_has_every_limit_in_shadow",
            "tests/policy/test_modes.py::test_a_policy_that_is_off_has_no_limit",
            "tests/policy/test_modes.py::test_a_limits_own_mode_wins_over_its_agents_and_that_over_the_policys",
            "tests/policy/test_modes.py::test_a_callers_mode_is_that_of_its_own_limits",
            "tests/policy/test_modes.py::test_a_tools_mode_is_that_of_its_limits",
            "tests/policy/test_every_knob_bites.py::test_a_limits_own_mode_lets_calls_pass_and_a_shadow_says_so",
            "tests/router/test_shadow.py::test_a_shadowed_limit_speaks_and_lets_the_call_pass",
            "tests/router/test_shadow.py::test_the_same_limit_switched_off_says_nothing",
            "tests/router/test_shadow.py::test_a_shadowed_denial_shows_in_the_audit_under_its_call",
        ),
    ),
    Requirement(
        "policy.manifests",
        "a manifest replaces defaults and is capped by the policy; reading one executes nothing",
        ("core: policy", "design: The policy file"),
        (
            "tests/policy/test_manifest.py::test_the_example_of_opensentience_means_what_it_says",
            "tests/policy/test_manifest.py::test_the_resources_of_claude_settings_mean_what_they_say",
            "tests/policy/test_manifest.py::test_what_the_agent_states_caps_its_manifests_containment",
            "tests/policy/test_manifest.py::test_reading_a_manifest_executes_nothing_and_opens_nothing_else",
            "tests/policy/test_manifest.py::test_a_large_manifest_is_refused_without_being_decoded",
            "tests/policy/test_precedence.py::TestManifestCeilings::test_it_replaces_defaults",
            "tests/policy/test_precedence.py::TestManifestCeilings::test_the_lower_of_manifest_and_agent_holds",
        ),
    ),
    Requirement(
        "policy.tokens",
        "an unset token is a warning of `check`; no value of one is kept or shown",
        ("design: The policy file",),
        (
            "tests/policy/test_source.py::TestForm::test_a_syntax_error_never_repeats_the_files_words",
            "tests/policy/test_load.py::TestTokens::test_an_unset_variable_is_a_warning",
            "tests/policy/test_load.py::TestTokens::test_its_value_is_kept_nowhere",
            "tests/policy/test_validate.py::test_what_stands_under_a_secret_key_is_in_no_error",
        ),
    ),
    Requirement(
        "policy.paths",
        "paths are relative to the policy file",
        ("design: The policy file",),
        (
            "tests/policy/test_load.py::TestPaths::test_paths_are_relative_to_the_policy_file",
            "tests/policy/test_load.py::TestPaths::test_wherever_the_process_stands",
        ),
    ),
    Requirement(
        "policy.check",
        "`check`, `explain` and `schema` answer by exit code, as text and as JSON",
        ("core: policy", "design: Command line"),
        (
            "tests/policy/test_cli.py::TestCheck::test_a_wrong_command_line_is_a_usage_error",
            "tests/policy/test_cli.py::TestCheck::test_a_good_file_is_ok_and_its_warnings_go_to_stderr",
            "tests/policy/test_cli.py::TestCheck::test_a_bad_file_is_no_with_every_problem_on_stderr",
            "tests/policy/test_cli.py::TestCheck::test_json_is_one_document_on_stdout",
            "tests/policy/test_cli.py::TestExplain::test_json_has_the_rows_of_the_api",
            "tests/policy/test_cli.py::TestSchema::test_it_prints_the_schema_for_editors",
        ),
    ),
    Requirement(
        "policy.explain",
        "each effective limit with the line it came from; what nothing enforces is absent",
        ("core: policy", "design: Python"),
        (
            "tests/policy/test_explain.py::test_every_effective_limit_is_shown_with_the_line_it_came_from",
            "tests/policy/test_explain.py::test_what_nothing_here_enforces_is_absent_and_says_so",
            "tests/policy/test_explain.py::test_what_is_shown_is_what_the_router_works_with",
            "tests/router/test_api.py::test_explain_says_each_limit_and_where_it_came_from",
            "tests/router/test_explain.py::test_the_rows_are_what_the_lane_of_that_call_enforces",
            "tests/router/test_explain.py::test_the_line_that_is_named_says_so",
            "tests/router/test_explain.py::test_a_tool_that_nobody_lists_is_under_its_longest_pattern_alone",
            "tests/policy/test_cli.py::TestExplain::test_what_an_agent_does_not_list_is_under_one_pattern_and_that_is_said",
        ),
    ),
    Requirement(
        "policy.schema",
        "the JSON schema and `check` agree",
        ("core: policy",),
        (
            "tests/policy/test_schema.py::test_every_policy_in_the_documentation_is_valid_and_the_schema_agrees",
            "tests/policy/test_schema.py::test_what_check_accepts_the_schema_accepts",
            "tests/policy/test_schema.py::test_what_check_rejects_the_schema_rejects",
            "tests/policy/test_schema.py::test_check_and_schema_agree_on_any_key_with_any_value",
        ),
    ),
    Requirement(
        "policy.knobs",
        "each key of the policy has a test that it bites, here or where a process is started",
        ("core: must reach 5",),
        (
            "tests/policy/test_every_knob_bites.py::test_every_key_of_the_policy_file_has_a_claim_and_every_claim_a_key",
            "tests/policy/test_every_knob_bites.py::test_with_the_key_calls_end_differently_than_without",
            "tests/policy/test_every_knob_bites.py::test_what_only_a_launcher_or_a_gate_enforces_is_absent_in_process",
        ),
    ),
    Requirement(
        "policy.watch",
        "a change of the file or its manifest is seen once; an invalid one is told once",
        ("design: The policy file",),
        (
            "tests/policy/test_watch.py::test_a_change_is_told_once",
            "tests/policy/test_watch.py::test_a_change_between_loading_and_watching_is_told",
            "tests/policy/test_watch.py::test_a_bad_file_is_one_error_and_a_good_one_after_it_is_told",
            "tests/policy/test_watch.py::test_a_manifest_that_is_mended_mends_the_policy",
            "tests/policy/test_watch.py::test_a_change_in_the_middle_of_reading_is_not_lost_and_what_was_read_is_not_told",
        ),
    ),
    Requirement(
        "policy.reload",
        "counters survive, buckets are clamped, running and waiting calls keep their lane, a "
        "bad policy changes nothing",
        ("core: python", "design: The policy file", "figures: reliability 20"),
        (
            "tests/router/test_reload.py::test_what_was_spent_stays_spent",
            "tests/router/test_reload.py::test_a_smaller_bucket_is_cut_to_its_new_burst",
            "tests/router/test_reload.py::test_who_is_inside_counts_under_the_new_policy_too",
            "tests/router/test_reload.py::test_calls_that_wait_and_run_keep_their_policy_in_the_audit",
            "tests/router/test_reload.py::test_a_policy_that_cannot_be_read_is_written_down_and_changes_nothing",
            "tests/router/test_reload.py::test_no_call_is_lost_or_mixed_in_a_thousand_reloads",
        ),
    ),
    Requirement(
        "limits.window",
        "over any window at most rate times time + burst are admitted",
        ("core: must reach 2", "design: Limits"),
        (
            "tests/limits/test_rate.py::test_in_no_window_pass_more_than_rate_times_time_plus_burst",
            "tests/limits/test_rate.py::test_it_admits_exactly_what_a_bucket_of_tokens_in_fractions_admits",
            "tests/router/test_rates.py::test_no_window_admits_more_than_rate_times_time_and_burst",
        ),
    ),
    Requirement(
        "limits.retry_after",
        "waiting exactly `retry_after_ms` admits, if nobody else took",
        ("core: must reach 2", "design: Limits", "figures: reliability 16"),
        (
            "tests/limits/test_rate.py::test_waiting_exactly_as_told_admits_and_a_nanosecond_less_does_not",
            "tests/limits/test_admission.py::test_whoever_waits_as_a_refusal_says_is_admitted_and_not_a_nanosecond_earlier",
            "tests/router/test_rates.py::test_waiting_exactly_as_told_admits_if_nobody_else_took",
            "tests/router/test_rates.py::test_waiting_a_millisecond_less_is_too_early",
            "tests/router/test_rates.py::test_on_the_real_clock_waiting_as_told_admits",
        ),
    ),
    Requirement(
        "limits.all_or_nothing",
        "a refused call of many scopes is charged nothing anywhere",
        (
            "core: limits",
            "core: must reach 2",
            "design: The life of a call",
            "figures: reliability 15",
        ),
        (
            "tests/limits/test_admission.py::test_a_call_enters_everywhere_or_nowhere",
            "tests/limits/test_admission.py::test_a_burst_of_refused_calls_leaves_the_other_scopes_their_budget",
            "tests/router/test_rates.py::test_refused_calls_charge_nothing_anywhere",
        ),
    ),
    Requirement(
        "limits.scopes",
        "three rate scopes, two concurrency scopes, per caller too; the tightest refuses and is"
        " named",
        ("core: limits", "design: Vocabulary"),
        (
            "tests/router/test_rates.py::test_the_tightest_scope_refuses_first_and_says_so",
            "tests/router/test_rates.py::test_a_rate_per_caller_is_each_callers_own",
            "tests/router/test_rates.py::test_a_callers_template_gives_each_unnamed_caller_its_own",
            "tests/router/test_rates.py::test_no_more_are_inside_than_each_scope_allows",
        ),
    ),
    Requirement(
        "limits.deny_or_wait",
        "any refusing scope that says deny refuses; waiting is paced",
        ("core: limits", "design: Queueing"),
        (
            "tests/limits/test_admission.py::TestReason::test_one_rate_that_denies_refuses_whatever_the_others_say",
            "tests/limits/test_admission.py::TestReason::test_an_empty_rate_may_be_waited_for_if_it_says_so",
            "tests/router/test_queue.py::test_paced_calls_enter_one_by_one_as_the_rate_refills",
        ),
    ),
    Requirement(
        "limits.concurrency",
        "no more inside than the slots; lowered slots only stop new entries",
        ("core: limits",),
        (
            "tests/limits/test_slots.py::test_as_many_enter_as_there_are_places",
            "tests/limits/test_slots.py::test_a_lowered_limit_only_stops_new_entries",
            "tests/router/test_queue.py::test_the_log_never_shows_more_inside_than_the_limit",
        ),
    ),
    Requirement(
        "limits.fair",
        "with k backlogged callers each gets a k-th of the entries, less one call",
        ("core: must reach 2", "design: Queueing"),
        (
            "tests/limits/test_queue.py::test_of_two_callers_of_one_tool_none_starves_while_a_third_uses_another",
            "tests/limits/test_queue.py::test_of_k_backlogged_callers_each_gets_a_kth_of_the_entries_less_one",
            "tests/limits/test_queue.py::test_callers_enter_in_turn_whatever_one_of_them_sends",
            "tests/limits/test_queue.py::test_backlogged_callers_of_a_tool_each_get_their_part_of_its_entries_less_one",
            "tests/router/test_queue.py::test_each_backlogged_caller_gets_its_share_less_one_call",
            "tests/router/test_queue.py::test_a_caller_with_one_call_does_not_wait_behind_anothers_hundred",
        ),
    ),
    Requirement(
        "limits.queue",
        "a waiting call holds nothing; FIFO a tool; a full queue refuses; what cannot make its "
        "deadline is refused at once",
        ("core: limits", "design: Queueing"),
        (
            "tests/limits/test_queue.py::test_a_waiting_call_holds_nothing",
            "tests/limits/test_queue.py::test_each_callers_calls_of_a_tool_enter_in_the_order_in_which_they_came",
            "tests/router/test_queue.py::test_a_waiting_call_holds_nothing",
            "tests/router/test_queue.py::test_no_more_wait_than_the_queue_has_places",
            "tests/router/test_queue.py::test_a_paced_call_that_cannot_make_its_deadline_is_refused_at_once",
            "tests/router/test_queue.py::test_a_call_that_waited_for_a_slot_in_vain_is_refused_as_concurrency",
            "tests/router/test_queue.py::test_a_call_that_was_paced_in_vain_is_refused_as_rate",
        ),
    ),
    Requirement(
        "limits.timeouts",
        "the time asked for, or the default, under every ceiling, fixed on arrival; queueing "
        "spends it",
        ("core: limits", "design: The life of a call"),
        (
            "tests/router/test_deadlines.py::test_a_call_has_the_time_it_asks_for_under_every_ceiling",
            "tests/router/test_deadlines.py::test_waiting_in_the_queue_spends_the_deadline",
        ),
    ),
    Requirement(
        "limits.bytes",
        "arguments and results have ceilings, measured only where set",
        ("core: limits", "design: Python"),
        (
            "tests/router/test_bytes.py::test_arguments_may_be_as_large_as_the_lowest_ceiling",
            "tests/router/test_bytes.py::test_a_result_may_be_as_large_as_its_ceiling",
            "tests/router/test_bytes.py::test_without_a_limit_nothing_is_measured",
        ),
    ),
    Requirement(
        "limits.bounded",
        "hostile names stay under a fixed bound; full buckets are forgotten, others never; "
        "beyond it newcomers share one",
        ("core: limits", "core: must reach 1", "design: Limits"),
        (
            "tests/limits/test_counters.py::test_no_order_of_callers_gives_anybody_more_than_its_rate",
            "tests/limits/test_deadlines.py::test_calls_that_ask_for_any_time_up_to_years_leave_a_bounded_number_of_slots",
            "tests/limits/test_counters.py::test_a_million_hostile_names_stay_under_the_bound",
            "tests/limits/test_counters.py::test_a_caller_whose_bucket_is_full_again_is_forgotten_when_others_come",
            "tests/limits/test_counters.py::test_beyond_the_bound_newcomers_share_one",
            "tests/limits/test_counters.py::test_a_caller_that_the_policy_names_is_never_forgotten_and_never_shares",
            "tests/router/test_rates.py::test_hostile_names_share_what_the_policy_gives_to_anybody",
            "measured: benchmarks/memory.py",
        ),
    ),
    Requirement(
        "limits.quota",
        "fixed windows in SQLite that survive restarts; a crash loses budget and never over-admits",
        ("core: limits", "design: Limits"),
        (
            "tests/limits/test_quota.py::test_a_window_admits_exactly_the_quota",
            "tests/limits/test_quota.py::test_whatever_happens_no_window_admits_more_than_the_quota",
            "tests/limits/test_quota.py::test_a_crash_loses_no_more_than_a_block",
            "tests/stores/test_sqlite.py::test_what_is_spent_stays_spent_over_a_restart",
            "tests/stores/test_sqlite.py::test_a_process_killed_at_any_moment_never_gives_budget_back",
            "tests/stores/test_sqlite.py::test_processes_that_start_together_share_one_quota",
            "tests/router/test_quota.py::test_a_restart_gives_nothing_back",
            "tests/router/test_quota.py::test_two_routers_on_one_store_never_admit_more_than_one_would",
            "tests/router/test_quota.py::test_who_has_no_quota_needs_no_store",
            "tests/router/test_quota.py::test_a_refusal_for_want_of_the_store_has_the_ids_of_its_job",
            "tests/router/test_quota.py::test_the_end_does_not_wait_for_a_store_that_hangs",
            "tests/router/test_quota.py::test_who_comes_as_a_block_has_just_been_spent_waits_for_the_next",
        ),
    ),
    Requirement(
        "deadline.wheel",
        "one mechanism for all calls; no deadline fires early, each within 10 ms",
        ("core: deadline and cancel", "figures: performance"),
        (
            "tests/limits/test_deadlines.py::test_it_does_what_a_list_would_do_however_calls_come_and_go",
            "tests/limits/test_deadlines.py::test_who_comes_when_told_finds_each_item_after_its_deadline_and_within_a_slot",
            "tests/router/test_deadlines.py::test_a_deadline_never_fires_early",
            "tests/router/test_deadlines.py::test_all_calls_share_one_timer",
            "tests/router/test_deadlines.py::test_the_wheel_is_looked_at_within_one_slot_of_the_deadline",
            "measured: benchmarks/deadlines.py",
        ),
    ),
    Requirement(
        "deadline.nested",
        "nested calls have what is left of their parent's time and its ids, and their own "
        "slots; no deadlock on one's own",
        ("core: deadline and cancel", "design: Nested calls"),
        (
            "tests/router/test_deadlines.py::test_a_nested_call_has_what_is_left_of_its_parents_time",
            "tests/router/test_deadlines.py::test_a_nested_call_may_have_less_time_than_its_parent",
            "tests/router/test_queue.py::test_a_nested_call_that_only_its_ancestors_block_is_refused_at_once",
            "tests/router/test_api.py::test_a_nested_call_has_its_parents_caller_and_ids",
        ),
    ),
    Requirement(
        "cancel.reaches",
        "a cancel by id, of a job or of the task reaches the work; one call's never hurts another",
        ("core: deadline and cancel", "design: The life of a call"),
        (
            "tests/router/test_cancellation.py::test_a_running_call_is_cancelled_by_its_id",
            "tests/router/test_cancellation.py::test_a_job_is_cancelled",
            "tests/router/test_cancellation.py::test_a_job_that_never_began_has_an_end_though_its_grace_is_over",
            "tests/router/test_cancellation.py::test_a_cancelled_caller_gets_its_cancel_and_the_tool_too",
            "tests/router/test_cancellation.py::test_cancelling_one_call_does_not_hurt_another",
        ),
    ),
    Requirement(
        "cancel.queued",
        "a call cancelled in the queue is charged nothing",
        ("design: Queueing",),
        (
            "tests/router/test_cancellation.py::test_a_call_in_the_queue_is_cancelled_and_charged_nothing",
        ),
    ),
    Requirement(
        "cancel.isolate",
        "`isolate: task` answers at the deadline; a thread holds its slot until it ends; the "
        "grace gives it back",
        ("core: deadline and cancel", "design: In process"),
        (
            "tests/router/test_cancellation.py::test_an_isolated_tool_is_answered_at_its_deadline_whatever_it_does",
            "tests/router/test_cancellation.py::test_a_thread_keeps_its_slot_until_it_ends",
            "tests/router/test_cancellation.py::test_work_that_swallows_its_cancel_keeps_its_slot_for_the_grace",
        ),
    ),
    Requirement(
        "work.contract",
        "whoever does a call's work, it has one end, one answer and one terminal record, and every "
        "slot comes back",
        ("core: deadline and cancel", "design: The life of a call"),
        (
            "tests/work_contract/test_work_contract.py::test_a_call_is_answered",
            "tests/work_contract/test_work_contract.py::test_a_refused_call_is_told_so_and_its_work_never_begins",
            "tests/work_contract/test_work_contract.py::test_a_call_is_cancelled_while_it_waits",
            "tests/work_contract/test_work_contract.py::test_a_call_is_cancelled_while_it_runs",
            "tests/work_contract/test_work_contract.py::test_a_call_times_out_and_its_work_is_told_to_stop",
            "tests/work_contract/test_work_contract.py::test_a_late_answer_is_counted_once_and_delivered_to_nobody",
            "tests/work_contract/test_work_contract.py::test_work_that_ignores_its_stop_keeps_its_slots_for_the_grace",
            "tests/work_contract/test_work_contract.py::test_the_end_of_the_router_ends_what_runs_and_what_waits",
        ),
    ),
    Requirement(
        "engine.model",
        "in any order of calls, ends, cancels, reloads, failing records and time slots are held by "
        "those who run, no rate or quota is passed, the queue is fair, nothing is left",
        ("core: limits", "design: Limits", "design: Queueing"),
        (
            "tests/router/test_engine_model.py::test_the_engine_agrees_with_its_model_after_every_step",
            "tests/router/test_known_faults.py::test_no_way_in_waits_longer_for_a_quota_than_the_call_may_take",
        ),
    ),
    Requirement(
        "cancel.storm",
        "slots and queues are conserved under 100,000 random cancels, with one outcome a call",
        ("core: must reach 2", "figures: reliability 3"),
        ("tests/router/test_cancel_storms.py::test_slots_and_queues_survive_random_cancels",),
    ),
    Requirement(
        "cancel.race",
        "answer and cancel in one tick give one outcome, 10,000 times",
        ("core: must reach 2", "figures: reliability 4"),
        ("tests/router/test_cancel_storms.py::test_answer_and_cancel_race_to_one_outcome",),
    ),
    Requirement(
        "cancel.outer",
        "no cancel of the caller's own task is swallowed, 10,000 times",
        ("core: must reach 2", "figures: reliability 5"),
        ("tests/router/test_cancel_storms.py::test_no_cancel_of_a_callers_task_is_ever_swallowed",),
    ),
    Requirement(
        "audit.schema",
        "a closed schema: nothing but its members, no free text of a peer",
        ("core: audit", "design: Audit"),
        (
            "tests/audit/test_events.py::test_a_line_has_the_members_of_the_design_and_the_two_of_the_adr",
            "tests/audit/test_events.py::test_a_member_or_value_outside_the_schema_is_no_record",
            "tests/audit/test_events.py::test_no_name_breaks_out_of_its_member",
            "tests/audit/test_events.py::test_what_is_no_uuid_is_not_kept",
            "tests/audit/test_names_and_merge.py::test_another_caller_is_shown_by_a_keyed_pseudonym",
            "tests/audit/test_names_and_merge.py::test_any_other_tool_name_is_left_out",
        ),
    ),
    Requirement(
        "audit.before_answer",
        "both records are on disk before the caller is answered; one terminal record an "
        "admitted call",
        ("core: audit", "design: Audit"),
        (
            "tests/router/test_audit.py::test_an_admitted_call_ends_once_in_the_log",
            "tests/router/test_audit.py::test_the_records_are_there_before_the_caller_is_answered",
            "tests/audit/test_log.py::test_a_recorded_line_is_on_disk_when_record_returns",
        ),
    ),
    Requirement(
        "audit.fail_closed",
        "what cannot be recorded is refused or withheld; `drop` counts; it recovers unaided",
        ("core: audit", "design: Audit", "figures: reliability 13"),
        (
            "tests/router/test_audit.py::test_a_call_whose_start_cannot_be_written_does_not_run",
            "tests/router/test_audit.py::test_an_answer_whose_record_cannot_be_written_is_withheld",
            "tests/router/test_closed_recorder.py::test_a_closed_log_refuses_and_writes_nothing",
            "tests/router/test_audit.py::test_a_former_log_is_closed_though_its_last_end_could_not_be_written",
            "tests/router/test_audit.py::test_drop_lets_calls_pass_and_counts_what_is_missing",
            "tests/router/test_audit.py::test_a_file_that_may_not_grow_any_more_closes_the_gate",
            "tests/audit/test_failures.py::test_writing_goes_on_unaided_when_there_is_room_again",
            "tests/audit/test_failures.py::test_a_real_limit_of_the_kernel_on_the_file_refuses_and_recovers",
            "tests/audit/test_failures.py::test_drop_mode_counts_and_lets_the_call_pass",
        ),
    ),
    Requirement(
        "audit.sinks",
        "a sink has a deadline; one that hangs holds no call up and its lost copies are counted",
        ("core: audit", "figures: reliability 13"),
        (
            "tests/audit/test_sinks.py::test_a_hung_sink_delays_no_record_and_its_lost_copies_are_counted",
            "tests/audit/test_sinks.py::test_a_sink_is_stalled_only_after_its_deadline",
            "tests/audit/test_sinks.py::test_a_sink_gets_the_same_bytes_as_the_disk",
            "tests/audit/test_sinks.py::test_opentelemetry_gets_each_line_as_a_log_record",
            "tests/router/test_audit.py::test_a_sink_that_hangs_holds_no_call_up",
        ),
    ),
    Requirement(
        "audit.chain",
        "any edit, deletion, swap or cut is found; a cut tail by HEAD, a rewritten log by an "
        "anchor",
        ("core: audit", "core: must reach 4", "figures: reliability 12"),
        (
            "tests/audit/test_chain.py::test_any_changed_byte_of_a_line_shows",
            "tests/audit/test_verify.py::test_a_thousand_random_tamperings_are_all_found",
            "tests/audit/test_verify.py::test_every_single_byte_of_log_and_head_is_covered",
            "tests/audit/test_verify.py::test_an_anchor_shows_a_log_that_was_rewritten_with_its_head",
            "tests/audit/test_verify.py::test_an_anchor_shows_a_rolled_back_log",
            "tests/audit/test_anchor.py::test_a_log_rewritten_as_a_later_segment_is_found",
            "tests/audit/test_cli.py::test_a_good_log_is_exit_0",
            "tests/audit/test_cli.py::test_a_changed_log_is_exit_1_and_says_where",
            "tests/audit/test_cli.py::test_where_there_is_no_log_nothing_is_called_well",
            "tests/audit/test_cli.py::test_an_anchor_that_cannot_be_written_is_exit_2_after_the_answer",
            "tests/audit/test_cli.py::test_a_written_anchor_is_compared_later",
        ),
    ),
    Requirement(
        "audit.segments",
        "rotation, retention by age and size, headers and closings",
        ("core: audit", "design: Audit"),
        (
            "tests/audit/test_log.py::test_every_segment_begins_with_a_header_and_ends_with_a_closing",
            "tests/audit/test_log.py::test_closed_segments_older_than_keep_are_deleted_and_recorded",
            "tests/audit/test_log.py::test_the_log_stays_under_max_bytes_while_it_is_written",
            "tests/audit/test_log.py::test_closed_segments_of_a_writer_that_nobody_holds_are_trimmed_in_its_own_chain",
        ),
    ),
    Requirement(
        "audit.recovery",
        "a start closes open calls as lost, once, and cuts a torn tail; tampering is left and told",
        ("core: audit", "design: Audit"),
        (
            "tests/audit/test_recovery.py::test_open_calls_are_closed_as_lost_under_their_own_names",
            "tests/audit/test_recovery.py::test_recovering_twice_ends_no_call_twice",
            "tests/audit/test_recovery.py::test_a_torn_last_line_is_cut",
            "tests/audit/test_recovery.py::test_tampering_is_not_repaired_but_left_and_reported",
        ),
    ),
    Requirement(
        "audit.writers",
        "each process has its own locked chain",
        ("design: Audit",),
        (
            "tests/audit/test_log.py::test_two_logs_at_once_have_two_writers_and_later_ones_reuse_them",
            "tests/audit/test_log.py::test_another_process_s_writer_is_left_alone",
            "tests/audit/test_log.py::test_a_forked_child_is_refused_and_the_parent_s_chain_stays_whole",
        ),
    ),
    Requirement(
        "audit.carried",
        "an open call outlives its segment; history that goes before its time is told",
        ("core: audit", "design: Audit"),
        (
            "tests/audit/test_carried.py::test_a_call_whose_segment_was_deleted_is_lost_after_kill_9",
            "tests/audit/test_carried.py::test_each_segment_begins_with_the_calls_that_are_open",
            "tests/audit/test_carried.py::test_a_segment_that_goes_before_its_time_is_told",
        ),
    ),
    Requirement(
        "audit.versions",
        "logs of version 1 are verified, recovered and gone on with",
        ("core: audit", "design: Audit"),
        (
            "tests/audit/test_versions.py::test_a_chain_changes_over_to_version_2",
            "tests/audit/test_versions.py::test_open_calls_of_version_1_are_ended_in_whatever_segment_they_began",
        ),
    ),
    Requirement(
        "audit.places",
        "directories and files of the audit are ours alone, regular, and never waited for",
        ("core: audit", "design: Audit"),
        (
            "tests/audit/test_unsafe_places.py::test_a_start_leaves_a_writer_alone_whose_files_are_not_ours",
            "tests/audit/test_unsafe_places.py::test_a_directory_that_others_may_write_to_is_refused_and_told",
            "tests/audit/test_unsafe_places.py::test_verify_finds_what_is_no_segment_and_does_not_wait_for_it",
            "tests/audit/test_unsafe_places.py::test_whatever_the_umask_only_we_can_look_inside",
            "tests/test_files.py::test_a_file_is_replaced_whole",
        ),
    ),
    Requirement(
        "audit.kill",
        "after kill -9 every answered call has its end, and after a restart every admitted call"
        " exactly one",
        ("core: must reach 4", "figures: reliability 2"),
        (
            "tests/audit/test_recovery.py::test_after_kill_9_every_answered_call_has_its_end_and_every_call_exactly_one",
            "tests/audit/test_kill.py::test_a_killed_process_loses_no_answered_call_and_every_call_ends_once",
            "tests/audit/test_kill.py::test_every_tampered_line_of_a_killed_and_recovered_log_is_found",
        ),
    ),
    Requirement(
        "audit.merged",
        "denials beyond 100 a second a lane are merged with a count",
        ("design: Audit",),
        (
            "tests/audit/test_names_and_merge.py::test_beyond_a_hundred_a_second_refusals_are_not_written_one_by_one",
            "tests/router/test_audit.py::test_a_flood_of_refusals_becomes_a_hundred_records_and_a_count",
        ),
    ),
    Requirement(
        "telemetry.spans",
        "one span a call, parent from the carrier, allow-listed attributes, no text",
        ("core: telemetry", "design: Telemetry"),
        (
            "tests/telemetry/test_spans.py::test_only_listed_attributes_are_recorded",
            "tests/telemetry/test_spans.py::test_the_text_of_an_exception_never_reaches_a_span",
            "tests/telemetry/test_spans.py::test_the_parent_is_the_carriers_span",
            "tests/router/test_telemetry.py::test_a_call_is_one_span_with_names_and_nothing_else",
            "tests/router/test_telemetry.py::test_a_tool_sees_the_calls_span_and_hands_it_on",
        ),
    ),
    Requirement(
        "telemetry.context",
        "trace context passes in and out, well-formed only, at little cost",
        ("core: telemetry", "design: Telemetry"),
        (
            "tests/telemetry/test_carrier.py::test_well_formed_fields_pass_and_others_are_left_out",
            "tests/telemetry/test_carrier.py::test_hostile_fields_cost_little",
            "tests/telemetry/test_carrier.py::test_nothing_that_passes_makes_the_propagators_speak",
            "tests/telemetry/test_spans.py::test_context_that_came_in_goes_out_with_our_span_as_parent",
        ),
    ),
    Requirement(
        "telemetry.metrics",
        "own counters, exported by observable instruments, never by caller",
        ("core: telemetry", "design: Telemetry"),
        (
            "tests/telemetry/test_stats.py::test_each_outcome_has_its_own_count",
            "tests/telemetry/test_stats.py::test_every_duration_is_in_exactly_one_bucket",
            "tests/telemetry/test_metrics.py::test_everything_that_was_counted_is_exported",
            "tests/telemetry/test_metrics.py::test_a_name_that_may_not_be_shown_is_other",
            "tests/router/test_telemetry.py::test_calls_are_counted_by_outcome",
            "tests/router/test_telemetry.py::test_refusals_are_counted_by_code_and_kind_of_scope",
            "tests/router/test_telemetry.py::test_late_answers_are_counted",
        ),
    ),
    Requirement(
        "telemetry.free",
        "without a provider no span, and next to no cost",
        ("core: telemetry", "design: Telemetry"),
        (
            "tests/router/test_telemetry.py::test_without_a_provider_a_call_makes_no_span_and_touches_no_instrument",
            "tests/router/test_telemetry.py::test_without_a_provider_telemetry_costs_next_to_nothing",
            "tests/telemetry/test_nobody.py::test_without_the_api_and_its_variables_nobody_can_come",
            "tests/telemetry/test_nobody.py::test_a_provider_that_was_set_up_before_the_gate_hears_of_its_calls",
        ),
    ),
    Requirement(
        "secrets.canary",
        "no secret of arguments, results, exceptions, names, ids or environment in audit, logs,"
        " spans, metrics or errors, in any encoding",
        ("core: must reach 3", "figures: reliability 10"),
        ("tests/test_canary.py::test_no_secret_shows_in_anything_that_the_router_leaves_behind",),
    ),
    Requirement(
        "secrets.detector",
        "the same detector catches every planted leak",
        ("core: must reach 3", "figures: reliability 10"),
        (
            "tests/test_canary_detector.py::test_a_planted_leak_of_each_canary_is_caught",
            "tests/test_canary_detector.py::test_base64_is_caught_at_every_alignment",
            "tests/test_canary_detector.py::test_at_least_twenty_kinds_of_leak_are_planted",
            "tests/test_canary.py::test_a_mistake_in_the_router_would_be_caught",
            "tests/test_canary.py::test_a_secret_in_a_log_is_caught_in_every_form",
        ),
    ),
    Requirement(
        "api.python",
        "the public names, typed; call, guard, submit, cancel, explain, snapshot, reload as the"
        " design has them",
        ("core: python", "design: Python"),
        (
            "tests/router/test_api.py::test_the_public_names_are_these",
            "tests/router/test_api.py::test_the_package_is_typed",
            "tests/router/test_api.py::test_arguments_bind_as_keywords",
            "tests/router/test_api.py::test_a_tools_own_exception_passes_unchanged",
            "tests/router/test_api.py::test_guard_runs_any_handler_under_a_tools_limits",
            "tests/router/test_api.py::test_a_job_has_its_id_at_once_and_its_result_as_often_as_asked",
            "tests/router/test_api.py::test_a_snapshot_shows_live_usage",
            "tests/router/test_api.py::test_guard_gives_an_agent_that_nobody_knows_the_defaults",
        ),
    ),
    Requirement(
        "ids.uuid7",
        "a call's id is made by us, counts up and has the form of a UUID of version 7",
        ("design: Vocabulary",),
        (
            "tests/test_model.py::test_ids_count_up_over_the_end_of_a_block_and_are_uuids_of_version_7",
        ),
    ),
    Requirement(
        "errors.structure",
        "errors are structured, complete and secret-free, each with its code and number",
        ("design: Errors",),
        (
            "tests/router/test_api.py::test_errors_are_structured_and_complete",
            "tests/docs/test_reference.py::test_the_page_of_errors_has_each_with_its_number",
        ),
    ),
    Requirement(
        "bench.inprocess",
        "full enforcement costs at most 0.40 of the hand-written composition, 0.15 without "
        "audit; a refusal no more than an admission",
        ("core: must reach 1", "core: benchmarks", "figures: performance"),
        ("measured: benchmarks/inprocess.py",),
    ),
    Requirement(
        "bench.memory",
        "under 1 KiB a lane, lanes are bounded, flat over a million calls",
        ("core: must reach 1",),
        (
            "tests/router/test_memory.py::test_a_lane_costs_less_than_a_kibibyte",
            "tests/router/test_memory.py::test_calls_of_one_lane_leave_nothing_behind",
            "tests/router/test_memory.py::test_tools_and_agents_that_nobody_has_become_no_keys",
            "tests/router/test_lanes_bound.py::test_lanes_beyond_the_bound_are_not_kept_and_their_calls_are_counted_all_the_same",
            "measured: benchmarks/memory.py",
        ),
    ),
)
"""The router and what it stands on."""

PROTOCOLS: Final = (
    Requirement(
        "codec.cuts",
        "a stream gives the same frames however it is cut",
        ("protocols: codecs",),
        (
            "tests/protocol/test_framing.py::test_lines_are_the_same_however_the_stream_is_cut",
            "tests/protocol/test_framing.py::test_lengths_are_the_same_however_the_stream_is_cut",
        ),
    ),
    Requirement(
        "codec.oversized",
        "an over-long frame is drained, its ends are kept, its id is found, and the stream goes"
        " on; memory stays bounded",
        ("protocols: codecs", "design: The life of a call", "figures: reliability 7"),
        (
            "tests/protocol/test_framing.py::test_an_oversized_frame_keeps_its_ends_and_the_stream_goes_on",
            "tests/peers/test_bounded_bytes.py::TestWhatIsKept::test_requests_that_were_sent_are_not_kept",
            "tests/peers/test_bounded_bytes.py::TestWhatIsKept::test_calls_that_wait_are_bounded_in_bytes",
            "tests/peers/test_bounded_bytes.py::TestWhatIsKept::test_a_small_tool_keeps_no_large_frame",
            "tests/peers/test_bounded_bytes.py::TestWhatNobodyReads::test_lists_that_a_client_does_not_read_are_bounded",
            "tests/peers/test_bounded_bytes.py::test_an_answer_nested_as_deep_as_can_be_ends_its_request",
            "tests/gate/test_feed.py::test_a_blank_every_60_microseconds_costs_a_bounded_part_of_a_processor",
            "tests/gate/test_feed.py::test_timers_and_others_have_their_turn_within_one_read",
            "tests/protocol/test_framing.py::test_a_flood_without_an_end_costs_no_more_than_the_limit",
            "tests/protocol/test_seek.py::test_the_id_of_an_oversized_frame_is_found_at_its_ends",
            "tests/protocol/test_seek.py::test_a_request_is_never_answered_under_another_id",
        ),
    ),
    Requirement(
        "codec.slow",
        "a frame that does not complete in time is an error",
        ("protocols: codecs", "figures: reliability 8"),
        (
            "tests/protocol/test_framing.py::test_a_frame_that_does_not_complete_says_since_when",
            "tests/protocol/test_framing.py::test_each_frame_has_its_own_time",
        ),
    ),
    Requirement(
        "codec.bad_input",
        "duplicate and look-alike keys, odd ids, bad UTF-8, NaN, depth bombs and batches each "
        "have a defined answer",
        ("protocols: codecs", "design: Protocols"),
        (
            "tests/protocol/test_jsonrpc.py::test_a_frame_that_is_not_json_is_a_parse_error",
            "tests/protocol/test_jsonrpc.py::test_a_frame_that_is_no_message_is_an_invalid_request",
            "tests/protocol/test_jsonrpc.py::test_an_id_that_readers_may_take_for_another_is_refused",
            "tests/protocol/test_jsonrpc.py::test_a_refusal_says_whom_to_answer",
            "tests/protocol/test_mcp.py::test_params_that_readers_take_differently_are_refused",
            "tests/protocol/test_mcp.py::test_bytes_that_are_no_text_are_refused_wherever_they_stand",
            "tests/protocol/test_mcp.py::test_a_method_that_resembles_one_of_ours_is_refused",
            "tests/protocol/test_members.py::test_a_key_that_resembles_one_of_ours_is_refused",
            "tests/peers/test_own_voice.py::test_an_answer_has_no_member_of_the_gates",
            "tests/peers/test_own_voice.py::test_an_error_has_no_data_shaped_as_ours",
            "tests/protocol/test_members.py::test_a_key_costs_no_more_folding_than_the_longest_of_ours",
            "tests/protocol/test_depth.py::test_the_bound_stands_where_it_is_said_to",
            "tests/protocol/test_depth.py::test_a_frame_that_is_too_deep_is_refused_and_its_id_is_found",
            "tests/protocol/test_members.py::test_an_object_with_too_many_members_is_refused_at_any_size",
        ),
    ),
    Requirement(
        "codec.runtime",
        "the runtime protocol's whole table, both ways; single tools are rejected and the "
        "others taken",
        ("protocols: codecs",),
        (
            "tests/protocol/test_runtime.py::test_the_whole_table_is_tested",
            "tests/protocol/test_runtime.py::test_each_message_of_the_table_is_read_as_it_is_written",
            "tests/protocol/test_runtime.py::test_a_bad_message_has_a_defined_answer",
            "tests/protocol/test_runtime.py::test_single_tools_are_rejected_and_the_others_taken",
        ),
    ),
    Requirement(
        "codec.forward",
        "routing fields are written anew, arguments and unknown members pass byte for byte",
        ("design: Protocols",),
        (
            "tests/protocol/test_mcp.py::TestPassingOn::test_arguments_and_unknown_members_are_passed_on_byte_for_byte",
            "tests/protocol/test_mcp.py::TestPassingOn::test_a_plain_call_gets_our_id",
            "tests/protocol/test_mcp.py::TestPassingOn::test_the_progress_token_is_ours",
            "tests/protocol/test_mcp.py::test_arguments_are_never_decoded",
        ),
    ),
    Requirement(
        "codec.differential",
        "never a frame where the tool that was checked is not the one a backend would run",
        ("protocols: must reach 2", "figures: reliability 9"),
        (
            "tests/protocol/test_differential.py::test_the_corpus_has_enough_of_either_kind",
            "tests/protocol/test_differential.py::test_every_reader_finds_the_tool_that_was_checked_in_what_is_passed_on",
            "tests/protocol/test_differential.py::test_every_reader_finds_the_tool_that_was_checked_in_the_frame_itself",
        ),
    ),
    Requirement(
        "codec.fuzz",
        "no fuzzed frame gets anything but an answer or a protocol error, in bounded memory, "
        "and a good call is still answered",
        ("protocols: must reach 1", "figures: reliability 6"),
        (
            "tests/fuzz/test_fuzz.py::test_no_frame_gets_anything_but_an_answer_or_a_protocol_error",
            "tests/fuzz/test_fuzz.py::test_a_codec_that_crashes_is_caught",
            "tests/fuzz/test_fuzz.py::test_the_frames_reach_the_reasons",
        ),
    ),
    Requirement(
        "codec.cost",
        "decode, route and encode within 2.5 times orjson; 1 MB of arguments is not decoded",
        ("protocols: must reach 3",),
        ("measured: benchmarks/codec.py",),
    ),
    Requirement(
        "codec.results",
        "a denied tool is left out of a list and all else stays; what cannot be read is refused",
        ("design: The policy file", "protocols: peers"),
        (
            "tests/protocol/test_results.py::test_a_hidden_tool_is_left_out_and_all_else_stays_as_it_was",
            "tests/protocol/test_results.py::test_a_list_that_cannot_be_read_is_refused",
        ),
    ),
    Requirement(
        "peer.ids",
        "ids and progress tokens are the gate's own; late, second and unknown answers reach nobody",
        ("protocols: peers", "design: Protocols", "design: The life of a call"),
        (
            "tests/peers/test_calls.py::test_the_agent_sees_an_id_of_ours_and_the_client_its_own",
            "tests/peers/test_calls.py::test_a_progress_token_is_ours_there_and_the_clients_here",
            "tests/peers/test_calls.py::test_a_second_answer_reaches_nobody",
            "tests/peers/test_calls.py::test_an_answer_to_nothing_is_counted_and_no_more",
            "tests/peers/test_calls.py::test_an_id_in_flight_is_refused_and_its_first_use_goes_on",
            "tests/peers/test_calls.py::test_a_number_and_its_text_are_two_ids",
        ),
    ),
    Requirement(
        "peer.callers",
        "a hundred callers with the same ids get their own answers",
        ("protocols: must reach 5", "protocols: callers' side", "figures: reliability 11"),
        (
            "tests/peers/test_many_callers.py::test_a_hundred_callers_with_the_same_ids_get_their_own_answers",
        ),
    ),
    Requirement(
        "peer.pass",
        "records are written before what they are about is sent, in few writes; no task, timer "
        "or future a call",
        ("protocols: must reach 4", "figures: performance"),
        (
            "tests/peers/test_calls.py::test_the_record_is_there_before_the_answer_is",
            "tests/gate/test_pipes.py::test_frames_of_one_write_are_one_system_call",
            "tests/peers/test_more_wire.py::test_what_the_loop_makes_does_not_grow_with_the_calls",
        ),
    ),
    Requirement(
        "peer.limits",
        "deadlines, queue, rates, byte limits and readable refusals hold on the wire",
        ("gate: front door", "protocols: callers' side", "design: Errors"),
        (
            "tests/peers/test_calls.py::test_a_deadline_answers_the_caller_and_cancels_the_work",
            "tests/peers/test_calls.py::test_a_deadline_is_never_early",
            "tests/peers/test_calls.py::test_queueing_spends_the_deadline",
            "tests/peers/test_calls.py::test_a_full_queue_refuses",
            "tests/peers/test_calls.py::test_a_rate_refuses_readably_and_says_when",
            "tests/peers/test_calls.py::test_arguments_over_their_limit_are_refused",
            "tests/peers/test_calls.py::test_a_result_over_its_limit_is_withheld",
            "tests/peers/test_calls.py::test_refusals_are_errors_if_the_policy_says_so",
        ),
    ),
    Requirement(
        "peer.cancel",
        "a cancel goes to the right id on the right connection and overtakes queued work",
        ("protocols: peers", "design: The life of a call"),
        (
            "tests/peers/test_cancel.py::test_a_cancel_reaches_the_agent_under_its_own_id",
            "tests/peers/test_cancel.py::test_a_cancel_overtakes_frames_that_wait",
            "tests/peers/test_cancel.py::test_a_call_that_waits_unsent_is_taken_back_and_nobody_hears_of_it",
            "tests/peers/test_cancel.py::test_cancelling_one_hurts_no_other",
        ),
    ),
    Requirement(
        "peer.grace",
        "the slot stays taken for the grace; who ignores a cancel and a ping is ended as the "
        "policy says",
        ("design: The life of a call",),
        (
            "tests/peers/test_cancel.py::test_the_slot_stays_taken_for_the_grace_and_no_longer",
            "tests/peers/test_cancel.py::test_a_deaf_agent_is_ended_after_a_ping",
            "tests/peers/test_cancel.py::test_an_agent_that_answers_the_ping_is_spared",
            "tests/peers/test_cancel.py::test_a_client_that_goes_away_cancels_everything",
        ),
    ),
    Requirement(
        "peer.death",
        "a death answers what was sent with the reason; what nobody read goes to the next process",
        ("gate: front door", "design: The life of a call"),
        (
            "tests/peers/test_death.py::test_a_death_answers_what_was_sent_with_the_reason",
            "tests/peers/test_death.py::test_an_end_by_a_limit_says_which_and_how_far",
            "tests/peers/test_death.py::test_what_no_process_can_have_read_goes_to_the_next",
            "tests/peers/test_death.py::test_a_death_for_good_answers_everybody",
        ),
    ),
    Requirement(
        "peer.replay",
        "the session is replayed to a new process; another version ends the gate",
        ("gate: front door", "design: Protocols"),
        (
            "tests/peers/test_death.py::test_the_session_is_replayed_before_anything_else",
            "tests/peers/test_death.py::test_another_version_ends_the_gate",
            "tests/peers/test_death.py::test_questions_of_a_dead_agent_are_withdrawn",
            "tests/peers/test_death.py::test_a_new_process_that_is_silent_has_failed_its_handshake_once",
        ),
    ),
    Requirement(
        "peer.fail_closed",
        "what cannot be recorded is neither sent nor answered, and it recovers unaided",
        ("gate: front door", "design: Audit", "figures: reliability 13"),
        (
            "tests/peers/test_fail_closed.py::test_a_call_whose_admission_is_not_written_is_not_sent",
            "tests/peers/test_fail_closed.py::test_an_answer_whose_record_is_not_written_is_withheld",
            "tests/peers/test_fail_closed.py::test_it_recovers_unaided",
            "tests/peers/test_fail_closed.py::test_a_log_that_may_drop_lets_calls_pass",
        ),
    ),
    Requirement(
        "peer.noise",
        "noise, bad frames, oversized frames and floods of either side hurt no other call",
        ("protocols: codecs", "gate: must reach 4", "design: The life of a call"),
        (
            "tests/peers/test_bad_frames.py::test_noise_of_an_agent_hurts_nobody",
            "tests/peers/test_bad_frames.py::test_noise_of_a_client_hurts_nobody",
            "tests/peers/test_bad_frames.py::test_an_oversized_call_is_refused_under_its_id_and_others_pass",
            "tests/peers/test_bad_frames.py::test_an_oversized_answer_ends_its_call_and_others_pass",
            "tests/peers/test_bad_frames.py::test_a_frame_that_does_not_end_in_time_is_an_error_and_hurts_nobody",
            "tests/peers/test_bad_frames.py::test_a_flood_of_rejected_frames_becomes_few_records_with_a_count",
        ),
    ),
    Requirement(
        "peer.requests",
        "other requests have a timeout and a bound, server-to-client requests and streams pass "
        "without one",
        ("protocols: peers", "design: Protocols"),
        (
            "tests/peers/test_requests.py::test_a_request_times_out_and_is_cancelled",
            "tests/peers/test_requests.py::test_only_so_many_requests_are_in_flight",
            "tests/peers/test_requests.py::test_an_agent_asks_its_client_under_an_id_of_ours",
            "tests/peers/test_requests.py::test_what_an_agent_asks_has_no_timeout",
            "tests/peers/test_requests.py::test_a_stream_has_no_timeout",
            "tests/peers/test_requests.py::test_requests_are_counted_by_known_method_or_as_other",
            "tests/peers/test_metrics.py::test_requests_rejected_frames_and_strays_are_counted",
        ),
    ),
    Requirement(
        "peer.tools",
        "the gate lists the tools itself, to a bound and on change; a client is shown what it "
        "may call",
        ("gate: front door", "design: The policy file"),
        (
            "tests/peers/test_requests.py::test_the_gate_lists_the_tools_itself_page_by_page",
            "tests/peers/test_requests.py::test_a_list_without_an_end_is_read_to_a_bound",
            "tests/peers/test_requests.py::test_a_change_is_listed_anew_one_listing_at_a_time",
            "tests/peers/test_requests.py::test_a_client_is_shown_only_what_it_may_call",
            "tests/peers/test_requests.py::test_an_allow_list_shows_and_lets_in_nothing_else",
            "tests/peers/test_calls.py::test_an_agent_that_the_policy_does_not_name_is_one_agent_from_its_first_call_on",
        ),
    ),
    Requirement(
        "peer.eras",
        "both eras of MCP, with and without initialize",
        ("protocols: peers",),
        (
            "tests/peers/test_calls.py::test_a_refusal_of_the_stateless_era_is_complete",
            "tests/peers/test_requests.py::test_the_stateless_era_is_listed_with_what_its_requests_carry",
            "tests/peers/test_requests.py::test_an_agent_is_not_listed_by_a_client_that_only_tries_which_era_it_is",
            "tests/peers/test_death.py::test_a_session_of_the_stateless_era_needs_no_replay",
        ),
    ),
    Requirement(
        "peer.tasks",
        "task-augmented calls are refused unless the policy lets them pass",
        ("design: Protocols",),
        ("tests/peers/test_calls.py::test_a_task_is_refused_unless_the_policy_lets_it_pass",),
    ),
    Requirement(
        "peer.quota",
        "quotas hold on the wire without holding up others",
        ("gate: front door",),
        (
            "tests/peers/test_quota.py::test_a_call_waits_for_its_budget_and_then_goes",
            "tests/peers/test_quota.py::test_a_spent_quota_refuses",
            "tests/peers/test_quota.py::test_a_store_that_fails_refuses",
            "tests/peers/test_quota.py::test_a_quota_in_shadow_lets_calls_pass_though_its_store_fails",
            "tests/peers/test_quota.py::test_a_quota_in_shadow_holds_a_call_up_only_shortly",
        ),
    ),
    Requirement(
        "peer.runtime",
        "the runtime protocol: one-time token, version, registration, ordered streams, "
        "cancel_ack, heartbeats, goodbye",
        ("protocols: peers",),
        (
            "tests/peers/test_runtime.py::test_a_good_hello_is_welcomed",
            "tests/peers/test_runtime.py::test_a_bad_hello_is_refused_and_the_process_ended",
            "tests/peers/test_runtime.py::test_a_token_is_good_for_one_try",
            "tests/peers/test_runtime.py::test_single_tools_are_rejected_and_the_others_taken",
            "tests/peers/test_runtime.py::test_what_is_streamed_becomes_progress_in_order",
            "tests/peers/test_runtime.py::test_a_cancel_ack_does_not_free_the_slot_but_the_result_does",
            "tests/peers/test_runtime.py::test_missed_beats_make_it_unhealthy_and_a_beat_well_again",
            "tests/peers/test_runtime.py::test_goodbye_is_said_to_whom_we_have_welcomed",
        ),
    ),
    Requirement(
        "peer.one_read",
        "frames that come in one read have the outcome that they have one by one",
        ("figures: performance", "gate: must reach 1"),
        (
            "tests/fuzz/test_fuzz.py::test_a_shortcut_that_takes_a_double_key_is_caught",
            "tests/peers/test_one_read.py::test_calls_of_one_read_are_sent_and_answered_in_their_order",
            "tests/peers/test_one_read.py::test_the_first_calls_of_a_read_are_admitted_and_the_others_refused",
            "tests/peers/test_one_read.py::test_a_cancel_ends_one_call_of_a_read",
            "tests/peers/test_one_read.py::test_when_the_agent_dies_each_call_is_answered",
            "tests/peers/test_one_read.py::test_records_that_cannot_be_written_hold_the_calls_of_a_read_back",
            "tests/peers/test_one_read.py::test_it_makes_no_difference_how_frames_are_cut_into_reads",
        ),
    ),
    Requirement(
        "peer.storms",
        "whatever client, process, disk and operator do: one answer each, and nothing left behind",
        ("protocols: peers",),
        (
            "tests/peers/test_storms.py::test_a_storm_over_mcp_leaves_nothing_behind",
            "tests/peers/test_storms.py::test_a_storm_over_the_runtime_protocol_leaves_nothing_behind",
        ),
    ),
    Requirement(
        "peer.secrets",
        "nothing that peers say is written down, nor told to the other side in our words",
        ("protocols: peers", "figures: reliability 10"),
        (
            "tests/peers/test_secrets.py::test_no_secret_of_an_mcp_peer_is_written",
            "tests/peers/test_secrets.py::test_no_secret_of_a_runtime_agent_is_written",
            "tests/peers/test_secrets.py::test_our_own_words_to_one_side_have_nothing_of_the_other",
        ),
    ),
    Requirement(
        "contract.suite",
        "the nine contract tests and the malformed corpus, for anybody's agent",
        ("protocols: reference agent",),
        (
            "tests/contract/test_contract.py::test_the_reference_agent_keeps_the_contract",
            "tests/contract/test_contract.py::test_a_fault_of_an_mcp_server_fails_its_check",
            "tests/contract/test_contract.py::test_a_fault_of_a_runtime_agent_fails_its_check",
            "tests/contract/test_contract.py::test_a_tool_that_somebody_named_must_be_there",
            "tests/contract/test_contract.py::test_a_check_that_does_not_exist_is_no_success",
            "tests/contract/test_contract.py::test_how_an_agent_ended_is_said",
            "tests/contract/test_contract.py::TestCommand::test_it_says_yes_with_exit_code_0",
            "tests/contract/test_contract.py::TestCommand::test_it_says_no_with_exit_code_1_and_json",
        ),
    ),
    Requirement(
        "contract.agent",
        "a reference agent that misbehaves on request, over both protocols",
        ("protocols: reference agent",),
        (
            "tests/contract/test_reference_agent.py::test_it_answers_a_call_that_it_should_have_cancelled",
            "tests/contract/test_reference_agent.py::test_it_answers_twice",
            "tests/contract/test_reference_agent.py::test_it_floods",
            "tests/contract/test_reference_agent.py::test_it_never_ends_a_line",
            "tests/contract/test_reference_agent.py::test_it_crashes",
            "tests/contract/test_reference_agent.py::test_it_lies_in_heartbeats",
        ),
    ),
)
"""Codecs, peers and the contract."""

LAUNCHER: Final = (
    Requirement(
        "launch.plan",
        "a launch is a plan as data, which can be printed before anything runs",
        ("launcher: plan",),
        (
            "tests/launcher/test_plan.py::test_without_containment_nothing_is_put_around_an_agent",
            "tests/launcher/test_plan.py::test_limits_become_files_of_a_v2_group",
            "tests/launcher/test_plan.py::test_limits_become_files_of_v1_groups_where_v2_has_no_controllers",
            "tests/launcher/test_plan.py::test_a_plan_names_variables_and_never_holds_a_value",
            "tests/cli/test_planned.py::test_a_plan_says_of_each_feature_whether_it_would_hold",
        ),
    ),
    Requirement(
        "launch.plugin",
        "another package's launcher replaces the built-in one",
        ("launcher: plan",),
        (
            "tests/launcher/test_plugins.py::test_a_launcher_is_found_by_its_entry_point",
            "tests/launcher/test_plugins.py::test_a_name_that_nobody_has_is_answered_with_those_that_exist",
            "tests/launcher/test_plugins.py::test_the_example_refuses_what_it_cannot_hold",
            "tests/launcher/test_plugins.py::test_a_launcher_that_fails_to_close_does_not_spare_the_others",
        ),
    ),
    Requirement(
        "launch.named",
        "a policy or an option names the launcher behind `run` and `exec`; one that is not there "
        "is refused before anything is launched",
        ("launcher: plan", "design: Launcher"),
        (
            "tests/gate/test_launchers.py::test_a_gate_starts_its_agent_with_the_launcher_that_is_named",
            "tests/gate/test_launchers.py::test_without_a_name_no_plugin_is_asked",
            "tests/gate/test_launchers.py::test_a_launcher_that_nobody_has_is_refused_before_anything_is_launched",
            "tests/gate/test_launchers.py::test_a_launcher_that_cannot_be_loaded_is_refused_with_the_reason",
            "tests/gate/test_launchers.py::test_what_a_plugin_cannot_hold_is_refused",
            "tests/gate/test_launchers.py::test_a_reload_that_names_an_unknown_launcher_changes_nothing",
            "tests/gate/test_launchers.py::test_a_reloaded_launcher_starts_the_next_run",
            "tests/gate/test_launchers.py::test_what_another_launcher_has_paused_is_given_up",
            "tests/gate/test_launchers.py::test_exec_runs_a_command_with_the_launcher_that_is_named",
            "tests/gate/test_launchers.py::test_exec_takes_the_launcher_from_a_policy",
            "tests/gate/test_launchers.py::test_exec_with_a_launcher_that_nobody_has_is_125",
            "tests/gate/test_launchers.py::test_check_warns_of_a_launcher_that_is_not_installed_here",
            "tests/gate/test_launchers.py::test_a_plan_is_never_shown_for_another_launcher_than_the_agents",
        ),
    ),
    Requirement(
        "launch.spec",
        "what a policy says of a process is compiled whole: seeds' limits, dials, mounts, "
        "variables, restart",
        ("launcher: limits", "design: Launcher"),
        (
            "tests/launcher/test_launch_spec.py::test_containment_brings_the_seeds_limits_which_nobody_wrote",
            "tests/launcher/test_launch_spec.py::test_every_limit_has_its_dial",
            "tests/launcher/test_launch_spec.py::test_unlimited_leaves_a_dial_alone",
            "tests/launcher/test_launch_spec.py::test_mounts_are_relative_to_the_policy_file",
            "tests/launcher/test_launch_spec.py::test_tokens_of_callers_are_withheld",
            "tests/launcher/test_launch_spec.py::test_naming_variables_makes_an_allow_list_even_without_containment",
        ),
    ),
    Requirement(
        "launch.reach",
        "the program, its links, its interpreter and its virtual environment are visible, a "
        "home never whole",
        ("design: Launcher",),
        (
            "tests/launcher/test_command.py::test_a_link_reaches_its_target",
            "tests/launcher/test_command.py::test_a_virtual_environment_is_reached_whole_and_its_python_too",
            "tests/launcher/test_command.py::test_a_home_directory_is_never_reached_whole",
            "tests/launcher/test_bwrap.py::test_only_what_is_writable_is_bound_so",
            "tests/launcher/test_bwrap.py::test_the_root_is_read_only_in_the_end",
            "tests/launcher/test_bwrap.py::test_a_network_namespace_is_left_out_only_at_level_network",
            "tests/containment/test_sandbox.py::test_a_virtual_environment_runs_in_a_sandbox",
        ),
    ),
    Requirement(
        "launch.groups",
        "the group of each hierarchy is found where its mount shows it",
        ("launcher: plan",),
        (
            "tests/launcher/test_cgroup_site.py::test_every_hierarchy_is_found_by_its_controllers",
            "tests/launcher/test_cgroup_site.py::test_a_group_is_where_its_mount_shows_it",
        ),
    ),
    Requirement(
        "warden.lean",
        "the warden loads nothing heavy, and messages to it arrive whole",
        ("launcher: life",),
        (
            "tests/launcher/test_lean.py::test_a_warden_loads_nothing_heavy",
            "tests/launcher/test_wire.py::test_messages_arrive_whole_however_they_are_cut",
            "tests/launcher/test_wire.py::test_descriptors_go_there_and_back",
        ),
    ),
    Requirement(
        "launch.refusal",
        "a level is had whole or refused with every gap; degraded is explicit, loud and reported",
        ("launcher: levels", "design: Launcher"),
        (
            "tests/launcher/test_plan.py::test_a_level_without_its_means_is_refused_with_all_that_is_missing",
            "tests/launcher/test_plan.py::test_what_one_thing_is_missing_for_is_said_once",
            "tests/launcher/test_plan.py::test_a_level_that_is_had_says_what_comes_with_it_and_does_not_hold",
            "tests/launcher/test_plan.py::test_a_refusal_can_be_allowed_and_then_the_plan_carries_its_gaps",
            "tests/containment/test_runs.py::test_a_level_that_cannot_be_had_is_refused_with_every_gap",
            "tests/containment/test_runs.py::test_degraded_containment_is_allowed_only_explicitly_and_said_aloud",
            "tests/containment/test_runs.py::test_a_run_says_what_holds",
            "tests/gate/test_more_degraded.py::test_what_is_missing_under_allow_degraded_is_in_the_audit_and_on_stderr",
            "tests/gate/test_more_degraded.py::test_without_allow_degraded_nothing_is_launched",
        ),
    ),
    Requirement(
        "launch.step",
        "what the kernel refused or reads back otherwise is an error that names the step",
        ("design: Launcher",),
        (
            "tests/launcher/test_life.py::test_a_launch_that_fails_names_the_step",
            "tests/launcher/test_shim.py::test_a_group_that_was_joined_only_seemingly_is_a_failure",
            "tests/launcher/test_shim.py::test_a_limit_that_the_system_refuses_is_a_failure_that_names_it",
            "tests/launcher/test_shim.py::test_an_agent_whose_warden_is_gone_does_not_begin",
            "tests/containment/test_groups.py::test_a_value_that_the_kernel_refuses_is_an_error_and_leaves_no_group",
            "tests/containment/test_groups.py::test_a_value_that_reads_back_otherwise_is_an_error",
        ),
    ),
    Requirement(
        "limit.memory",
        "cannot allocate past 64 MiB, with all that it starts",
        ("launcher: limits", "launcher: must reach 1"),
        (
            "tests/containment/test_limits.py::test_a_child_cannot_allocate_past_64_mib",
            "tests/containment/test_limits.py::test_everything_that_a_child_starts_shares_its_memory",
        ),
    ),
    Requirement(
        "limit.pids",
        "a fork bomb stops at 16",
        ("launcher: limits", "launcher: must reach 1"),
        (
            "tests/containment/test_limits.py::test_a_fork_bomb_stops_at_16",
            "tests/containment/test_limits.py::test_a_fork_bomb_in_a_sandbox_stops_at_16_of_its_own",
        ),
    ),
    Requirement(
        "limit.cpu",
        "no more than its share of processors, and its cpu time",
        ("launcher: limits",),
        (
            "tests/containment/test_limits.py::test_a_busy_child_gets_no_more_than_its_share_of_processors",
            "tests/containment/test_limits.py::test_a_child_that_spins_is_ended_at_its_cpu_time",
        ),
    ),
    Requirement(
        "limit.disk",
        "a workspace holds no more bytes and files; where it is only watched the run ends; a "
        "count that hangs counts as exceeded",
        ("launcher: limits",),
        (
            "tests/containment/test_sandbox.py::test_a_workspace_holds_no_more_bytes_than_it_may",
            "tests/containment/test_sandbox.py::test_a_workspace_holds_no_more_files_than_it_may",
            "tests/containment/test_runs.py::test_a_workspace_that_is_only_watched_ends_the_run_when_it_is_full",
            "tests/launcher/test_monitor.py::test_a_workspace_that_hangs_counts_as_exceeded",
        ),
    ),
    Requirement(
        "limit.rlimits",
        "open files, address space and wall time hold; a child cannot raise them; None leaves a"
        " dial alone",
        ("launcher: limits",),
        (
            "tests/containment/test_limits.py::test_a_child_cannot_open_more_files_than_it_may",
            "tests/containment/test_limits.py::test_a_child_cannot_map_more_than_its_address_space",
            "tests/containment/test_limits.py::test_a_child_that_outlives_its_wall_time_is_ended",
            "tests/containment/test_limits.py::test_a_child_cannot_raise_its_own_limits_again",
            "tests/containment/test_limits.py::test_a_dial_that_is_left_alone_stays_as_it_was",
            "tests/containment/test_limits.py::test_a_child_cannot_dump_a_larger_core_than_it_may",
            "tests/containment/test_runs.py::test_a_child_with_more_connections_than_it_may_have_is_ended",
        ),
    ),
    Requirement(
        "limit.network",
        "a manifest's network limits are read and shown as absent",
        ("launcher: limits",),
        ("tests/policy/test_explain.py::test_what_nothing_here_enforces_is_absent_and_says_so",),
    ),
    Requirement(
        "level.namespaces",
        "each level has the namespaces of the table, as observed",
        ("launcher: levels",),
        ("tests/containment/test_sandbox.py::test_each_level_has_its_own_namespaces",),
    ),
    Requirement(
        "level.processes",
        "cannot see the host's processes",
        ("launcher: must reach 1",),
        ("tests/containment/test_sandbox.py::test_a_child_cannot_see_the_hosts_processes",),
    ),
    Requirement(
        "level.network",
        "cannot open a TCP connection at level standard; at network it can, and cannot listen "
        "where it likes",
        ("launcher: must reach 1",),
        (
            "tests/containment/test_sandbox.py::test_a_child_reaches_the_hosts_network_only_from_level_network_on",
            "tests/containment/test_sandbox.py::test_a_child_cannot_open_a_tcp_connection_to_the_outside",
            "tests/containment/test_sandbox.py::test_a_child_of_level_network_cannot_listen_on_a_port_of_its_choice",
            "tests/containment/test_sandbox.py::test_a_child_cannot_reach_an_abstract_socket_of_the_host",
        ),
    ),
    Requirement(
        "level.files",
        "cannot write outside its workspace, cannot read /etc/shadow, also when callgate is root",
        ("launcher: must reach 1",),
        (
            "tests/containment/test_sandbox.py::test_a_child_cannot_write_outside_its_workspace",
            "tests/containment/test_sandbox.py::test_a_child_cannot_read_etc_shadow",
            "tests/containment/test_sandbox.py::test_a_child_cannot_read_etc_shadow_even_if_the_whole_of_etc_is_mounted",
            "tests/containment/test_sandbox.py::test_no_process_of_a_sandbox_is_root_for_the_host",
        ),
    ),
    Requirement(
        "level.syscalls",
        "only listed system calls pass, whatever bits the kernel ignores; there is no capability",
        ("launcher: levels",),
        (
            "tests/launcher/test_seccomp.py::test_each_number_of_this_machine_gets_the_expected_answer",
            "tests/launcher/test_seccomp.py::test_sockets_are_those_of_the_list_whatever_the_upper_bits",
            "tests/launcher/test_seccomp.py::test_no_bit_decides_that_the_kernel_does_not_look_at",
            "tests/launcher/test_seccomp.py::test_each_difference_to_dockers_profile_has_its_reason",
            "tests/containment/test_system_calls.py::test_a_call_that_is_not_listed_is_refused",
            "tests/containment/test_system_calls.py::test_a_call_that_libc_can_do_without_is_missing",
            "tests/containment/test_system_calls.py::test_at_level_network_no_kind_of_tcp_listens_on_a_port_of_its_choice",
            "tests/containment/test_system_calls.py::test_what_programs_do_all_day_goes_on",
            "tests/containment/test_sandbox.py::test_a_child_runs_under_a_filter_and_without_any_capability",
        ),
    ),
    Requirement(
        "level.real",
        "published servers and everyday programs do the same at level network as outside",
        ("launcher: levels",),
        (
            "tests/compat/walls/test_walls.py::test_the_filesystem_server",
            "tests/compat/walls/test_walls.py::test_the_everything_server",
            "tests/compat/walls/test_walls.py::test_the_memory_server",
            "tests/compat/walls/test_walls.py::test_the_sequential_thinking_server",
            "tests/compat/walls/test_walls.py::test_the_time_server",
            "tests/compat/walls/test_walls.py::test_the_git_server",
            "tests/compat/walls/test_walls.py::test_the_fetch_server",
            "tests/compat/walls/test_walls.py::test_the_sqlite_server",
            "tests/compat/walls/test_walls.py::test_the_calculator_server",
            "tests/compat/walls/test_walls.py::test_the_duckduckgo_server",
            "tests/compat/walls/test_walls.py::test_a_program_prints_the_same",
        ),
    ),
    Requirement(
        "level.v2",
        "the claims about cgroup v2 controllers hold in User-mode Linux, or on Debian's kernel",
        ("launcher: must reach 1",),
        (
            "tests/containment/test_kernels.py::test_every_claim_about_cgroup_v2_holds_in_another_kernel",
            "tests/vm/test_machines.py::test_a_token_of_another_boot_proves_nothing",
            "tests/vm/test_machines.py::test_a_machine_that_panics_is_told_apart_with_the_kernels_words",
        ),
    ),
    Requirement(
        "life.reasons",
        "each end has its reason from a closed set; OOM is told from our kill and from somebody's",
        ("launcher: life", "design: Launcher"),
        (
            "tests/launcher/test_life.py::test_somebodys_sigkill_is_a_signal_and_not_out_of_memory",
            "tests/launcher/test_life.py::test_our_own_kill_has_the_reason_that_we_gave",
            "tests/launcher/test_life.py::test_an_agent_that_ends_with_a_code_has_crashed",
            "tests/launcher/test_life.py::test_an_exit_in_a_sandbox_is_told_from_a_signal_where_the_kernel_knows",
            "tests/launcher/test_shim.py::test_an_agent_that_ended_before_it_was_found_is_not_mistaken_for_its_sandbox",
            "tests/containment/test_runs.py::test_a_code_that_an_agent_in_a_sandbox_exits_with_is_not_a_signal",
            "tests/containment/test_limits.py::test_the_limit_that_ended_a_run_is_told",
        ),
    ),
    Requirement(
        "life.paused",
        "out of memory pauses; the workspace is kept and the run resumed in it",
        ("launcher: life", "design: Launcher"),
        (
            "tests/containment/test_runs.py::test_a_run_that_is_out_of_memory_is_paused_and_goes_on_in_its_workspace",
            "tests/containment/test_runs.py::test_a_paused_run_keeps_its_workspace_until_it_is_given_up",
        ),
    ),
    Requirement(
        "life.restart",
        "restarts with backoff, a maximum and a brake on storms",
        ("launcher: life",),
        (
            "tests/gate/test_restart.py::test_the_wait_doubles_up_to_the_longest_and_then_it_stays_down",
            "tests/gate/test_restart.py::test_no_more_than_ten_starts_fit_into_a_minute",
            "tests/gate/test_restart.py::test_a_restart_follows_only_what_the_policy_says",
        ),
    ),
    Requirement(
        "life.stop",
        "SIGTERM to the agent, grace, then the whole tree",
        ("launcher: life", "design: Launcher"),
        (
            "tests/launcher/test_life.py::test_an_agent_is_asked_before_it_is_killed",
            "tests/launcher/test_life.py::test_an_agent_that_ignores_the_question_is_killed_with_its_tree",
            "tests/containment/test_runs.py::test_the_agent_in_a_sandbox_is_asked_to_end_not_the_sandbox",
        ),
    ),
    Requirement(
        "life.orphans",
        "kill -9 of callgate at any moment leaves no process, also none that called setsid",
        ("launcher: must reach 2",),
        (
            "tests/launcher/test_orphans.py::test_no_process_is_left_when_callgate_is_killed_at_a_random_moment",
            "tests/launcher/test_orphans.py::test_nothing_of_a_sandbox_is_left_when_callgate_is_killed_at_a_random_moment",
            "tests/launcher/test_life.py::test_an_agent_dies_with_a_warden_that_is_killed",
        ),
    ),
    Requirement(
        "life.leaks",
        "crashes leave no zombie, descriptor, cgroup or workspace",
        ("launcher: must reach 2",),
        (
            "tests/launcher/test_life.py::test_crashes_leave_no_zombies_and_no_descriptors",
            "tests/containment/test_runs.py::test_crashes_leave_no_group_no_workspace_and_no_descriptor",
        ),
    ),
    Requirement(
        "life.sweep",
        "a start sweeps what a killed callgate and warden left, and nothing alive",
        ("launcher: life",),
        (
            "tests/containment/test_runs.py::test_a_sweep_ends_and_removes_what_a_killed_callgate_and_warden_left",
            "tests/containment/test_runs.py::test_a_sweep_leaves_living_runs_alone",
        ),
    ),
    Requirement(
        "life.history",
        "runs with reason, usage and limit, bounded, in SQLite; `callgate runs`",
        ("launcher: life",),
        (
            "tests/launcher/test_history.py::test_a_run_comes_back_as_it_was_written",
            "tests/launcher/test_history.py::test_the_oldest_go_first_and_those_that_run_stay",
            "tests/launcher/test_history.py::test_a_run_whose_callgate_is_gone_ended_with_it",
            "tests/launcher/test_cli_runs.py::test_runs_are_shown_newest_first_with_reason_and_use",
            "tests/launcher/test_cli_runs.py::test_json_has_every_member",
            "tests/launcher/test_cli_runs.py::test_a_narrow_terminal_loses_whole_columns_and_never_half_a_number",
        ),
    ),
    Requirement(
        "life.message",
        "a message says who, which limit, how much, and what can be done",
        ("launcher: life",),
        (
            "tests/launcher/test_message.py::test_it_says_who_which_limit_and_how_much",
            "tests/launcher/test_message.py::test_every_limit_that_can_end_a_run_has_its_own_words",
        ),
    ),
    Requirement(
        "monitor.thresholds",
        "a warning at 90 %, an end above 100 % where the kernel does not, never for cpu",
        ("launcher: monitor", "design: Launcher"),
        (
            "tests/launcher/test_limit_check.py::test_ninety_percent_is_a_warning_and_no_end",
            "tests/launcher/test_limit_check.py::test_above_its_limit_a_run_must_end",
            "tests/launcher/test_limit_check.py::test_what_the_kernel_holds_is_not_ended_by_us_but_warned_of",
            "tests/launcher/test_limit_check.py::test_a_busy_processor_is_never_an_end",
            "tests/containment/test_runs.py::test_a_warning_comes_before_the_limit",
            "tests/containment/test_runs.py::test_memory_that_no_group_holds_is_watched_and_the_run_ended",
        ),
    ),
    Requirement(
        "monitor.usage",
        "cpu, memory, disk, pids and connections are seen while a run lives",
        ("launcher: monitor",),
        (
            "tests/containment/test_runs.py::test_usage_is_seen_while_a_run_lives",
            "tests/launcher/test_usage_readers.py::test_a_look_has_the_workspace_and_the_connections_too",
        ),
    ),
    Requirement(
        "monitor.shown",
        "cpu, memory, disk, pids and connections of a process are in `snapshot()` and in "
        "metrics, one series an agent",
        ("launcher: monitor", "design: Telemetry"),
        (
            "tests/gate/test_usage.py::test_a_snapshot_has_what_an_agents_process_uses_now",
            "tests/gate/test_usage.py::test_the_same_is_in_the_metrics_that_the_sdk_collects",
            "tests/gate/test_usage.py::test_the_next_run_of_an_agent_goes_on_with_its_processor_time",
            "tests/router/test_usage.py::test_a_live_process_has_one_series_of_each_metric",
            "tests/router/test_usage.py::test_what_nobody_measured_is_not_reported_as_nothing",
            "tests/router/test_usage.py::test_processor_time_is_added_up_over_restarts_and_never_shrinks",
            "tests/router/test_usage.py::test_a_process_that_is_gone_uses_nothing",
            "tests/router/test_usage.py::test_restarts_make_no_further_series",
            "tests/launcher/test_monitor.py::test_processor_time_of_processes_that_have_ended_is_not_forgotten",
        ),
    ),
    Requirement(
        "capture.bounds",
        "stdout and stderr are bounded by line and in all, marked, drained and not buffered",
        ("launcher: capture",),
        (
            "tests/launcher/test_capture.py::test_a_head_keeps_the_first_bytes_and_says_if_there_were_more",
            "tests/launcher/test_capture.py::test_a_head_marks_its_end_once",
            "tests/launcher/test_capture.py::test_a_ring_keeps_the_last_lines",
        ),
    ),
    Requirement(
        "capture.flood",
        "a flood on stderr costs at most 32 MiB",
        ("launcher: must reach 4",),
        ("tests/launcher/test_capture.py::test_a_flood_on_stderr_costs_at_most_32_mib",),
    ),
    Requirement(
        "env.allow_list",
        "variables are an allow-list; secrets pass by name and are shown nowhere",
        ("launcher: capture",),
        (
            "tests/launcher/test_environment.py::test_with_containment_only_names_pass_and_what_everybody_needs",
            "tests/containment/test_sandbox.py::test_a_child_gets_only_the_variables_that_are_named",
            "tests/containment/test_sandbox.py::test_a_secret_stands_in_no_argument_of_any_process",
            "tests/launcher/test_capture.py::test_secrets_are_masked_wherever_the_reads_were_cut",
        ),
    ),
    Requirement(
        "pty.works",
        "a terminal inside the containment, with Ctrl-C and window size",
        ("launcher: capture",),
        (
            "tests/launcher/test_terminal.py::test_ctrl_c_is_a_signal_to_the_agent_and_to_nobody_else",
            "tests/launcher/test_terminal.py::test_a_new_size_of_the_window_is_news_for_the_agent",
            "tests/containment/test_runs.py::test_ctrl_c_reaches_an_agent_at_a_terminal_and_nobody_else",
            "tests/containment/test_runs.py::test_a_window_that_changes_is_seen_in_the_sandbox",
        ),
    ),
    Requirement(
        "doctor.proves",
        "`doctor` proves by doing, names cause and fix, and answers by exit code",
        ("launcher: doctor and exec",),
        (
            "tests/launcher/test_doctor.py::test_a_limit_that_held_is_enforced",
            "tests/launcher/test_doctor.py::test_a_process_that_was_left_behind_to_be_killed_ends_also_if_nobody_does_it",
            "tests/launcher/test_doctor.py::test_a_limit_that_did_not_hold_is_not_called_enforced",
            "tests/launcher/test_doctor.py::test_a_wall_that_lets_a_write_through_is_no_wall",
            "tests/launcher/test_doctor.py::test_a_filter_that_refuses_nothing_is_found_out",
            "tests/launcher/test_doctor.py::test_a_tmpfs_that_holds_more_than_it_may_is_none",
            "tests/launcher/test_doctor.py::test_a_bwrap_that_shares_our_namespaces_is_found_out",
            "tests/launcher/test_doctor.py::test_each_cause_of_a_refusal_has_its_own_way_out",
            "tests/launcher/test_cli_doctor.py::test_the_answer_is_whether_level_standard_can_be_had",
            "tests/launcher/test_cli_doctor.py::test_without_bwrap_the_answer_is_no_and_says_what_to_install",
        ),
    ),
    Requirement(
        "limit.pages",
        "the page of each limit has an example that ends as it says",
        ("launcher: doctor and exec",),
        (
            "tests/launcher/test_docs.py::test_an_example_ends_as_its_page_says",
            "tests/launcher/test_docs.py::test_every_page_has_an_example",
        ),
    ),
    Requirement(
        "exec.answer",
        "`exec` prints what came of one contained command, with error classes and exit codes",
        ("launcher: doctor and exec", "design: Command line"),
        (
            "tests/launcher/test_cli_exec.py::test_a_command_that_ends_well_is_exit_0",
            "tests/launcher/test_cli_exec.py::test_a_memory_hog_is_ended_with_limit_exceeded",
            "tests/launcher/test_cli_exec.py::test_what_takes_longer_than_its_timeout_is_exit_124",
            "tests/launcher/test_cli_exec.py::test_what_the_host_cannot_enforce_is_exit_125_and_nothing_runs",
            "tests/launcher/test_cli_exec.py::test_a_signal_cancels_the_command_and_is_exit_130",
            "tests/launcher/test_cli_exec.py::test_output_over_a_mebibyte_is_cut_and_said_to_be",
            "tests/launcher/test_cli_exec.py::test_a_command_over_64_kib_is_refused",
        ),
    ),
    Requirement(
        "launch.portable",
        "where there is no fork, the process layer still watches and kills the tree",
        ("launcher: other systems",),
        (
            "tests/launcher/test_portable.py::test_a_kill_ends_the_tree",
            "tests/launcher/test_portable.py::test_time_and_memory_are_held_by_watching",
            "tests/launcher/test_portable.py::test_what_it_cannot_do_is_refused",
            "tests/launcher/test_portable.py::test_nothing_that_only_unix_has_is_imported",
        ),
    ),
    Requirement(
        "bench.launch",
        "process at most 15 times a plain spawn, strict at most 80 ms, loop lag at most 10 ms",
        ("launcher: must reach 3",),
        ("measured: benchmarks/launch.py",),
    ),
)
"""Processes that cannot hurt the host."""

GATE: Final = (
    Requirement(
        "gate.memory",
        "the memory of large frames is used again, and not given back after each",
        ("gate: must reach 1",),
        ("tests/gate/test_memory.py::test_the_memory_of_large_frames_is_used_again",),
    ),
    Requirement(
        "gate.loops",
        "`run` uses uvloop where the extra `speed` is installed, and needs it nowhere",
        ("gate: front door", "design: Dependencies"),
        (
            "tests/gate/test_loops.py::test_uvloop_is_used_where_it_is_installed",
            "tests/gate/test_loops.py::test_the_gate_needs_no_uvloop",
            "tests/gate/test_loops.py::test_on_uvloop",
        ),
    ),
    Requirement(
        "gate.end",
        "the end of stdin is drained, the agent ended, exit codes as documented",
        ("gate: front door", "design: Command line"),
        (
            "tests/gate/test_run.py::test_a_call_passes_and_a_clean_end_is_zero",
            "tests/gate/test_run.py::test_the_end_of_stdin_lets_what_is_in_flight_be_answered",
            "tests/gate/test_run.py::test_without_a_restart_a_death_ends_the_gate_with_its_code",
            "tests/gate/test_run.py::test_a_signal_that_ends_the_agent_is_told_as_a_shell_would",
            "tests/gate/test_run.py::test_a_signal_ends_the_gate_and_the_agent",
            "tests/gate/test_more_ends.py::test_the_end_of_stdin_is_seen_though_a_dead_agent_had_not_read",
            "tests/gate/test_more_ends.py::test_whoever_asks_twice_for_the_end_is_not_kept_waiting",
        ),
    ),
    Requirement(
        "gate.client_death",
        "the client's death is the agent's, and so is the gate's own",
        ("gate: front door", "gate: must reach 3"),
        (
            "tests/gate/test_run.py::test_a_client_that_dies_takes_the_agent_with_it",
            "tests/gate/test_run.py::test_a_gate_that_is_killed_takes_the_agent_with_it",
        ),
    ),
    Requirement(
        "gate.restart",
        "a death is answered at once and the client does not notice the restart",
        ("gate: front door",),
        (
            "tests/gate/test_run.py::test_a_death_is_answered_at_once_and_the_client_does_not_notice",
            "tests/gate/test_run.py::test_an_agent_that_closes_its_stdout_and_lives_is_replaced",
            "tests/gate/test_run.py::test_a_process_that_comes_back_with_another_version_ends_the_gate",
            "tests/gate/test_more_ends.py::test_a_locked_history_does_not_hold_up_answers_or_the_next_process",
            "tests/gate/test_more_ends.py::test_a_launcher_that_fails_unforeseen_leaves_nobody_waiting",
            "tests/peers/test_more_life.py::test_each_call_is_answered_once_whatever_happens",
        ),
    ),
    Requirement(
        "gate.cancel",
        "cancels and progress pass both ways",
        ("gate: front door",),
        (
            "tests/gate/test_run.py::test_a_cancel_reaches_the_work_and_frees_its_slot",
            "tests/gate/test_run.py::test_progress_reaches_the_client",
        ),
    ),
    Requirement(
        "gate.zero",
        "without a policy calls pass, and one line says what is enforced and what is not",
        ("gate: zero configuration", "design: Audit"),
        (
            "tests/gate/test_command_line.py::test_without_configuration_one_line_says_what_is_enforced_and_what_is_not",
            "tests/gate/test_command_line.py::test_without_configuration_calls_pass",
            "tests/gate/test_command_line.py::test_an_audit_at_home_that_cannot_be_written_is_said_and_calls_pass",
        ),
    ),
    Requirement(
        "gate.reload",
        "a changed policy or SIGHUP is in force for new calls; a bad one changes nothing",
        ("gate: zero configuration", "design: The policy file"),
        (
            "tests/gate/test_command_line.py::test_a_changed_policy_is_in_force_for_new_calls",
            "tests/gate/test_command_line.py::test_a_hang_up_reloads",
            "tests/gate/test_command_line.py::test_a_policy_that_cannot_be_used_leaves_the_old_one",
            "tests/gate/test_command_line.py::test_a_reload_reaches_the_next_process",
        ),
    ),
    Requirement(
        "cli.interrupt",
        "Ctrl-C at any moment of a start is 130, without a traceback and without a process left",
        ("design: Command line",),
        (
            "tests/cli/test_interrupt.py::test_an_interrupt_at_any_moment_of_the_start_is_130_and_no_traceback",
            "tests/cli/test_interrupt.py::test_a_start_that_ignores_interrupts_goes_on_ignoring_them",
        ),
    ),
    Requirement(
        "cli.text",
        "text of others reaches a terminal or a log only as printable characters in one line",
        ("design: Errors",),
        (
            "tests/test_text.py::test_nothing_unprintable_is_left_and_every_encoder_takes_it",
            "tests/test_text.py::test_a_json_document_says_the_same_in_printable_characters",
            "tests/cli/test_hostile_text.py::test_no_command_prints_what_is_not_printable",
            "tests/cli/test_hostile_text.py::test_markup_in_a_name_is_not_interpreted",
            "tests/cli/test_hostile_text.py::test_commands_print_by_one_module_alone",
        ),
    ),
    Requirement(
        "policy.exposed",
        "no agent may write to its policy, its manifest, the audit, the state or the code",
        ("design: The policy file", "design: Launcher"),
        (
            "tests/cli/test_exposed.py::test_a_writable_mount_of_what_guards_an_agent_is_a_problem",
            "tests/cli/test_exposed.py::test_a_writable_mount_of_the_code_is_a_problem",
            "tests/cli/test_exposed.py::test_a_mount_through_a_link_is_the_same_mount",
            "tests/cli/test_exposed.py::test_a_bind_mount_is_another_name_of_the_same",
            "tests/cli/test_exposed.py::test_check_and_run_refuse_it_with_line_and_column",
            "tests/cli/test_exposed.py::test_exec_refuses_such_a_mount_of_its_own",
        ),
    ),
    Requirement(
        "gate.reload_whole",
        "no policy that is half-written, or has lost the running agent, is ever in force; what a "
        "policy loosens is said and recorded; no file that is read again stops a reload or an end",
        ("design: The policy file",),
        (
            "tests/cli/test_half_written.py::test_only_a_policy_that_was_finished_is_ever_told",
            "tests/cli/test_half_written.py::test_the_cuts_would_be_used_after_one_look",
            "tests/gate/test_reload.py::test_a_policy_that_no_longer_names_the_agent_leaves_it_its_rules",
            "tests/gate/test_reload.py::test_a_policy_that_allows_more_is_used_and_each_loosening_is_said_and_recorded",
            "tests/gate/test_reload.py::test_a_truncated_file_leaves_what_is_denied_denied",
            "tests/gate/test_reload.py::test_a_manifest_that_cannot_be_read_any_more_stops_no_reload",
            "tests/gate/test_reload.py::test_sigterm_ends_the_gate_while_a_read_of_the_policy_hangs",
            "tests/policy/test_loosened.py::test_each_way_to_allow_more_is_found_and_none_of_the_ways_back",
        ),
    ),
    Requirement(
        "gate.unusable",
        "what cannot be used is said before anything is launched",
        ("design: Command line", "design: Audit"),
        (
            "tests/gate/test_command_line.py::test_what_cannot_be_used_is_one_before_anything_is_launched",
            "tests/gate/test_command_line.py::test_bad_usage_is_two",
            "tests/gate/test_command_line.py::test_a_command_that_cannot_be_started_is_a_refusal",
        ),
    ),
    Requirement(
        "gate.stderr",
        "an agent's stderr passes, masked, until the handshake, or as asked; our tokens do not "
        "reach it",
        ("design: Launcher",),
        (
            "tests/gate/test_command_line.py::test_an_agents_stderr_passes_masked_until_its_handshake_or_as_asked",
            "tests/gate/test_command_line.py::test_callgates_own_tokens_do_not_reach_the_agent",
            "tests/gate/test_command_line.py::test_a_stderr_that_nobody_reads_does_not_stop_the_gate",
            "tests/gate/test_more_words.py::test_a_server_that_ends_at_its_start_is_told_with_its_own_words",
            "tests/gate/test_more_words.py::test_what_a_server_prints_to_its_stdout_is_told_once_and_not_repeated",
            "tests/gate/test_more_words.py::test_an_agent_that_the_policy_does_not_know_is_told",
        ),
    ),
    Requirement(
        "gate.paused",
        "a memory hog is ended, told, paused and resumed",
        ("gate: front door", "design: Launcher"),
        (
            "tests/gate/test_containment.py::test_a_memory_hog_is_ended_told_paused_and_resumed",
            "tests/gate/test_containment.py::test_a_gate_whose_agent_is_paused_ends",
        ),
    ),
    Requirement(
        "gate.runtime",
        "an agent of the runtime protocol is served to an MCP client",
        ("design: Protocols",),
        (
            "tests/gate/test_run.py::test_a_runtime_agent_is_served_to_an_mcp_client",
            "tests/gate/test_run.py::test_a_runtime_agent_that_dies_is_replaced",
        ),
    ),
    Requirement(
        "gate.kill_agent",
        "kill -9 of the agent with 50 calls in flight: each answered once, in time, nothing leaked",
        ("gate: must reach 3", "figures: reliability 1"),
        (
            "tests/gate/test_reliability.py::test_the_agent_is_killed_and_every_caller_is_answered_once",
        ),
    ),
    Requirement(
        "gate.kill_gate",
        "kill -9 of the gate: no answer without its record, no orphan",
        ("gate: must reach 3", "figures: reliability 2"),
        ("tests/gate/test_reliability.py::test_the_gate_is_killed_and_no_answer_lacks_its_record",),
    ),
    Requirement(
        "gate.noise",
        "a noisy agent or client, also with a 100 MB line, kills neither the gate nor another call",
        ("gate: must reach 4", "figures: reliability 7"),
        (
            "tests/gate/test_noise.py::test_a_noisy_agent_hurts_no_call",
            "tests/gate/test_noise.py::test_a_noisy_client_hurts_no_call",
            "tests/gate/test_noise.py::test_what_peers_say_is_not_in_our_stderr_or_audit",
        ),
    ),
    Requirement(
        "gate.backpressure",
        "neither side is read while the other does not read; deadlines go on; no deadlock",
        ("gate: front door",),
        (
            "tests/gate/test_noise.py::test_a_client_is_not_read_while_the_agent_does_not_read",
            "tests/gate/test_noise.py::test_an_agent_is_not_read_while_the_client_does_not_read",
            "tests/gate/test_noise.py::test_both_at_once_do_not_deadlock",
            "tests/gate/test_noise.py::test_deadlines_go_on_while_nobody_reads",
            "tests/gate/test_pipes.py::test_the_source_is_held_at_the_high_water_and_released_at_the_low",
            "tests/gate/test_pipes.py::test_frames_of_one_write_are_one_system_call",
            "tests/gate/test_pipes.py::test_whatever_happens_whole_frames_arrive_once",
        ),
    ),
    Requirement(
        "gate.bandwidth",
        "frames are paced in chunks, cancels go first",
        ("protocols: peers", "design: Limits"),
        (
            "tests/gate/test_noise.py::test_bandwidth_is_paced_both_ways",
            "tests/gate/test_pipes.py::test_a_paced_writer_takes_its_time",
            "tests/gate/test_pipes.py::test_a_cancel_goes_before_paced_frames_and_never_into_one",
        ),
    ),
    Requirement(
        "gate.real",
        "clients and servers of the SDK 1 and 2, FastMCP and published servers see no difference",
        ("gate: must reach 2",),
        (
            "tests/gate/test_more_sdk2.py::test_a_client_sees_the_same_with_and_without_the_gate",
            "tests/gate/test_more_sdk2.py::test_a_call_that_its_client_gives_up_is_cancelled",
            "tests/compat/gate_v1/test_gate_v1.py::test_a_client_sees_the_same_with_and_without_the_gate",
            "tests/compat/gate_v1/test_gate_v1.py::test_the_published_time_server_works_unchanged",
            "tests/compat/gate_v1/test_gate_v1.py::test_the_published_git_server_works_unchanged",
            "tests/compat/gate_v1/test_gate_v1.py::test_the_published_filesystem_server_works_unchanged",
            "tests/compat/gate_v1/test_gate_v1.py::test_the_published_everything_server_works_unchanged",
            "tests/compat/gate_v1/test_gate_v1.py::test_the_published_memory_server_works_unchanged",
            "tests/compat/gate_v1/test_gate_v1.py::test_a_clients_cancel_ends_the_call_and_the_session_goes_on",
            "tests/gate/test_more_sdk2.py::test_questions_pages_and_streams_are_the_same",
            "tests/compat/gate_v1/test_across_eras.py::test_a_client_of_2_sees_the_same_of_a_server_of_1",
            "tests/compat/gate_v1/test_across_eras.py::test_a_client_of_1_sees_the_same_of_a_server_of_2",
            "tests/compat/gate_v1/test_across_eras.py::test_a_client_of_2_sees_the_same_of_the_published_time_server",
            "tests/compat/gate_v1/test_across_eras.py::test_a_client_of_2_sees_the_same_of_the_published_everything_server",
        ),
    ),
    Requirement(
        "gate.demo",
        "the demonstration shows each claim, checks it, and leaves a policy and an audit",
        ("gate: demo", "design: Command line"),
        (
            "tests/cli/test_demo.py::test_every_scene_keeps_its_claim",
            "tests/cli/test_demo.py::test_it_leaves_a_policy_and_an_audit_to_look_at",
            "tests/cli/test_demo.py::test_a_claim_that_is_not_kept_is_said_and_is_exit_1",
            "tests/cli/test_demo.py::test_the_end_says_what_became_of_all_calls",
            "tests/cli/test_demo.py::test_it_deletes_nothing_that_is_not_its_own",
            "tests/cli/test_demo.py::test_a_gate_that_does_not_start_is_said_at_once_with_its_words",
            "tests/cli/test_demo.py::test_a_terminal_shows_the_claim_that_is_tried_and_the_last_calls",
        ),
    ),
    Requirement(
        "gate.docs",
        "README and pages work as written; references are generated from the code",
        ("gate: newcomers",),
        (
            "tests/docs/test_examples.py::test_everything_on_the_page_works",
            "tests/docs/test_examples.py::test_every_page_can_be_reached_from_the_index",
            "tests/docs/test_reference.py::test_the_page_has_every_command_and_option_that_the_help_shows",
        ),
    ),
    Requirement(
        "bench.stdio",
        "shares of the direct rate, start-up and memory of `run`, against proxies of others",
        ("gate: must reach 1", "gate: benchmarks", "figures: performance"),
        ("measured: benchmarks/stdio.py", "measured: benchmarks/wire.py"),
    ),
    Requirement(
        "gate.lean",
        "`run` starts its agent before heavy imports, and imports only what its gate uses",
        ("design: Command line", "design: Dependencies"),
        (
            "tests/cli/test_more_start.py::test_nothing_is_imported_that_a_gate_does_not_use",
            "tests/cli/test_more_start.py::test_a_gate_with_a_policy_needs_yaml_beside",
            "tests/cli/test_more_start.py::test_plugins_of_pydantic_are_not_imported_and_the_agent_is_not_told_so",
            "tests/cli/test_more_start.py::test_a_gate_that_serves_collects_garbage_but_not_among_what_its_start_made",
            "tests/cli/test_more_start.py::test_without_a_policy_the_agent_runs_before_anything_heavy_is_imported",
        ),
    ),
)
"""In front of one process."""

MOUNTS: Final = (
    Requirement(
        "mount.fail_closed",
        "a fault of callgate or of the caller's function lets nothing through",
        ("mounts: fail closed",),
        (
            "tests/mounts/test_common.py::test_a_caller_function_that_fails_lets_nothing_through",
            "tests/mounts/test_common.py::test_a_router_that_fails_lets_nothing_through",
            "tests/mounts/test_common.py::test_a_router_that_is_not_running_lets_nothing_through",
        ),
    ),
    Requirement(
        "mount.extra",
        "a missing package names its extra; the core imports no runtime",
        ("mounts: runtimes",),
        (
            "tests/mounts/test_common.py::test_a_missing_package_names_its_extra",
            "tests/router/test_api.py::test_importing_the_package_imports_none_of_its_parts",
        ),
    ),
    Requirement(
        "mount.caller",
        "who calls is a text or a function of the runtime's context",
        ("mounts: names",),
        (
            "tests/mounts/test_common.py::test_a_function_of_the_context_says_who_calls",
            "tests/mounts/test_contract.py::test_a_name_or_a_function_says_who_calls",
            "tests/mounts/test_fastmcp.py::test_the_subject_of_the_access_token_is_the_caller",
            "tests/mounts/test_mcp_sdk.py::test_the_subject_of_the_access_token_is_the_caller",
            "tests/mounts/test_langchain.py::test_the_caller_can_be_told_by_a_function_of_the_runtime",
            "tests/mounts/test_openai_agents.py::test_the_caller_can_be_told_by_a_function_of_the_context",
            "tests/mounts/test_pydantic_ai.py::test_the_caller_can_be_told_by_a_function_of_the_run_context",
            "tests/mounts/test_asgi.py::test_an_authenticated_user_is_the_caller",
        ),
    ),
    Requirement(
        "mount.contract",
        "one contract under every runtime; what a runtime cannot do has a reason, and is shown",
        ("mounts: tested", "mounts: idiomatic", "mounts: fail closed", "mounts: compat"),
        (
            "tests/mounts/test_contract.py::test_an_admitted_call_is_answered_and_recorded",
            "tests/mounts/test_contract.py::test_a_call_over_its_rate_is_refused",
            "tests/mounts/test_contract.py::test_a_call_too_many_at_once_is_refused",
            "tests/mounts/test_contract.py::test_a_call_waits_for_its_turn",
            "tests/mounts/test_contract.py::test_a_call_that_takes_too_long_is_answered_and_its_work_is_stopped",
            "tests/mounts/test_contract.py::test_a_sync_tool_is_answered_for_in_time_and_keeps_its_slot",
            "tests/mounts/test_contract.py::test_a_cancel_from_outside_stops_the_work_and_frees_its_slot",
            "tests/mounts/test_contract.py::test_a_denied_call_is_refused_and_recorded",
            "tests/mounts/test_contract.py::test_a_denied_tool_is_not_offered",
            "tests/mounts/test_contract.py::test_in_shadow_mode_a_call_passes_and_its_denial_is_recorded",
            "tests/mounts/test_contract.py::test_arguments_over_their_bytes_are_refused",
            "tests/mounts/test_contract.py::test_a_result_over_its_bytes_is_withheld_and_no_other",
            "tests/mounts/test_contract.py::test_a_tools_own_failure_passes_and_is_recorded_as_one",
            "tests/mounts/test_contract.py::test_a_name_or_a_function_says_who_calls",
            "tests/mounts/test_contract.py::test_a_router_that_fails_lets_nothing_through",
            "tests/mounts/test_contract.py::test_a_caller_that_cannot_be_told_lets_nothing_through",
            "tests/mounts/test_contract.py::test_arguments_and_results_reach_no_record_no_log_and_no_refusal",
            "tests/mounts/test_contract.py::test_a_call_that_asks_a_person_is_suspended_and_resumed",
            "tests/mounts/test_contract.py::test_two_gates_in_one_agent_both_count_and_either_may_refuse",
            "tests/mounts/test_contract.py::test_a_call_on_another_loop_is_refused_and_told_what_to_do",
            "tests/mounts/test_contract.py::test_every_claim_has_a_test",
            "tests/mounts/test_contract.py::test_no_runtime_has_a_reason_and_a_finding_for_one_claim",
            "tests/docs/test_mounts_table.py::test_the_index_of_mounts_is_what_the_adapters_say",
            "tests/docs/test_mounts_table.py::test_every_reason_is_on_the_page",
        ),
    ),
    Requirement(
        "mount.measured",
        "a result is measured as what its reader gets; one too large or without a size is withheld",
        ("mounts: tested", "mounts: idiomatic"),
        (
            "tests/mounts/test_langchain.py::test_messages_are_measured_as_the_model_will_read_them",
            "tests/mounts/test_openai_agents.py::test_an_output_is_measured_as_what_the_model_will_get",
            "tests/mounts/test_pydantic_ai.py::test_a_result_is_measured_as_what_the_runtime_makes_of_it",
            "tests/mounts/test_guarded.py::test_a_result_that_has_no_size_is_withheld_and_the_call_has_an_end",
            "tests/mounts/test_claude_agent.py::test_an_answer_of_claude_codes_own_tool_can_be_withheld",
            "tests/mounts/test_claude_agent.py::test_an_answer_that_cannot_be_replaced_stops_the_agent",
        ),
    ),
    Requirement(
        "mount.one_loop",
        "a call on another loop than the router's runs nothing and is told what to do",
        ("mounts: tested", "mounts: idiomatic"),
        (
            "tests/mounts/test_guarded.py::test_on_another_loop_nothing_runs_and_nothing_waits",
            "tests/router/test_api.py::test_a_call_on_another_loop_runs_nothing_and_says_what_to_do",
            "tests/router/test_api.py::test_a_call_from_another_loop_can_be_made_on_the_routers",
        ),
    ),
    Requirement(
        "mount.guarded",
        "a decorator and a block for everything else: the whole list of claims",
        ("mounts: runtimes", "mounts: tested"),
        (
            "tests/mounts/test_guarded.py::test_a_function_keeps_its_name_and_its_answer",
            "tests/mounts/test_guarded.py::test_a_refusal_is_raised",
            "tests/mounts/test_guarded.py::test_a_caller_that_cannot_be_told_is_refused",
            "tests/mounts/test_guarded.py::test_a_block_is_a_call",
        ),
    ),
    Requirement(
        "mount.mcp_sdk",
        "servers of the MCP SDK 2: the whole list of claims",
        ("mounts: runtimes", "mounts: tested"),
        (
            "tests/mounts/test_mcp_sdk.py::test_a_refusal_is_an_error_result_that_a_model_can_read",
            "tests/mounts/test_mcp_sdk.py::test_a_gate_that_fails_lets_nothing_through",
            "tests/mounts/test_mcp_sdk.py::test_the_example_says_what_it_shows",
        ),
    ),
    Requirement(
        "mount.mcp_sdk_v1",
        "servers of the MCP SDK 1: the whole list of claims, in an environment of their own",
        ("mounts: runtimes", "mounts: tested", "mounts: compat"),
        (
            "tests/compat/mcp_v1/test_mcp_sdk_v1.py::test_a_refusal_is_an_error_result_that_a_model_can_read",
            "tests/compat/mcp_v1/test_mcp_sdk_v1.py::test_a_gate_that_fails_lets_nothing_through",
            "tests/compat/mcp_v1/test_mcp_sdk_v1.py::test_the_example_says_what_it_shows",
        ),
    ),
    Requirement(
        "mount.fastmcp",
        "FastMCP servers and proxies: the whole list of claims",
        ("mounts: runtimes", "mounts: tested"),
        (
            "tests/mounts/test_fastmcp.py::test_a_refusal_is_an_error_result_that_a_model_can_read",
            "tests/mounts/test_fastmcp.py::test_a_gate_that_fails_lets_nothing_through",
            "tests/mounts/test_fastmcp.py::test_a_proxy_guards_the_server_behind_it",
            "tests/mounts/test_fastmcp.py::test_the_example_says_what_it_shows",
        ),
    ),
    Requirement(
        "mount.langchain",
        "LangChain and LangGraph, sync and async: the whole list of claims",
        ("mounts: runtimes", "mounts: tested"),
        (
            "tests/mounts/test_langchain.py::test_a_refusal_is_an_error_message_that_a_model_can_read",
            "tests/mounts/test_langchain.py::test_invoke_works_in_a_thread_of_an_async_program",
            "tests/mounts/test_threads.py::test_a_call_whose_time_is_up_before_it_has_a_thread_never_runs",
            "tests/mounts/test_threads.py::test_isolated_work_in_a_thread_keeps_its_slot_beyond_the_grace",
            "tests/mounts/test_langchain.py::test_the_example_runs",
        ),
    ),
    Requirement(
        "mount.langchain.control",
        "a graph's interrupts, commands and control exceptions pass",
        ("mounts: idiomatic",),
        (
            "tests/mounts/test_langchain.py::test_an_interrupt_reaches_the_graph_and_is_resumed",
            "tests/mounts/test_langchain.py::test_a_command_of_a_tool_passes",
            "tests/mounts/test_langchain.py::test_a_nodes_own_control_exceptions_pass",
        ),
    ),
    Requirement(
        "mount.openai_agents",
        "OpenAI Agents, tools and whole agents: the whole list of claims",
        ("mounts: runtimes", "mounts: tested"),
        (
            "tests/mounts/test_openai_agents.py::test_a_denied_tool_is_not_offered",
            "tests/mounts/test_openai_agents.py::test_the_example_runs",
        ),
    ),
    Requirement(
        "mount.pydantic_ai",
        "Pydantic AI, capability and toolset: the whole list of claims",
        ("mounts: runtimes", "mounts: tested"),
        (
            "tests/mounts/test_pydantic_ai.py::test_a_refusal_is_a_failure_that_a_model_can_read_and_spends_no_retry",
            "tests/mounts/test_pydantic_ai.py::test_a_toolset_does_not_have_a_denied_tool",
            "tests/mounts/test_pydantic_ai.py::test_the_example_runs",
        ),
    ),
    Requirement(
        "mount.asgi",
        "any MCP application over HTTP, both eras; bodies have a cap; a disconnect is a cancel",
        ("mounts: runtimes", "mounts: tested"),
        (
            "tests/mounts/test_asgi.py::test_an_admitted_call_passes_with_its_answer",
            "tests/mounts/test_asgi.py::test_a_refusal_is_an_error_result_that_a_model_can_read",
            "tests/mounts/test_asgi.py::test_a_refusal_is_in_the_form_of_its_era",
            "tests/mounts/test_asgi.py::test_a_disconnect_cancels_the_work",
            "tests/mounts/test_asgi.py::test_a_denied_tool_is_refused_and_not_offered",
            "tests/mounts/test_asgi.py::test_a_body_that_is_too_large_is_refused",
            "tests/mounts/test_asgi.py::test_no_secret_reaches_the_audit_or_a_refusal",
            "tests/mounts/test_asgi.py::test_a_gate_that_fails_lets_nothing_through",
            "tests/mounts/test_asgi_servers.py::test_a_real_server_is_guarded",
            "tests/mounts/test_asgi_servers.py::test_fastmcps_application_is_guarded",
            "tests/mounts/test_asgi_servers.py::test_the_example_says_what_it_shows",
        ),
    ),
    Requirement(
        "mount.google_adk",
        "Google ADK, a plugin: the whole list of claims",
        ("mounts: runtimes", "mounts: tested"),
        (
            "tests/mounts/test_google_adk.py::test_an_admitted_call_is_answered_and_named_in_the_audit",
            "tests/mounts/test_google_adk.py::test_a_refusal_is_an_error_that_a_model_can_read",
            "tests/mounts/test_google_adk.py::test_a_gate_that_fails_lets_nothing_through",
            "tests/mounts/test_google_adk.py::test_the_example_runs",
        ),
    ),
    Requirement(
        "mount.claude_agent",
        "Claude Agent SDK, hooks: deny, rate, concurrency, audit; a timeout is noted and stops "
        "nothing",
        ("mounts: runtimes", "mounts: tested"),
        (
            "tests/mounts/test_claude_agent.py::test_a_tool_that_takes_too_long_is_noted_and_not_stopped",
            "tests/mounts/test_claude_agent.py::test_a_hook_that_cannot_answer_blocks_the_tool",
            "tests/mounts/test_claude_agent.py::test_the_example_runs",
        ),
    ),
    Requirement(
        "mount.crewai",
        "CrewAI, a hook that fails closed",
        ("mounts: runtimes", "mounts: tested"),
        (
            "tests/mounts/test_crewai.py::test_an_admitted_call_is_answered_and_named_in_the_audit",
            "tests/mounts/test_crewai.py::test_a_refusal_is_a_result_that_a_model_can_read",
            "tests/mounts/test_crewai.py::test_a_gate_that_fails_lets_nothing_through",
            "tests/mounts/test_crewai.py::test_without_a_running_router_nothing_passes",
            "tests/mounts/test_crewai.py::test_the_example_runs",
        ),
    ),
    Requirement(
        "mount.storm",
        "cancels through mounts leak nothing",
        ("mounts: idiomatic",),
        ("tests/mounts/test_cancel_storms.py::test_cancels_leak_nothing_and_each_call_ends_once",),
    ),
    Requirement(
        "mount.examples",
        "a runnable program for each runtime, run by its tests",
        ("mounts: examples and pages",),
        (
            "tests/mounts/test_fastmcp.py::test_the_example_says_what_it_shows",
            "tests/mounts/test_mcp_sdk.py::test_the_example_says_what_it_shows",
            "tests/mounts/test_guarded.py::test_the_example_says_what_it_shows",
            "tests/mounts/test_asgi_servers.py::test_the_example_says_what_it_shows",
            "tests/mounts/test_langchain.py::test_the_example_runs",
            "tests/mounts/test_openai_agents.py::test_the_example_runs",
            "tests/mounts/test_pydantic_ai.py::test_the_example_runs",
            "tests/mounts/test_google_adk.py::test_the_example_runs",
            "tests/mounts/test_claude_agent.py::test_the_example_runs",
            "tests/mounts/test_crewai.py::test_the_example_runs",
            "tests/compat/mcp_v1/test_mcp_sdk_v1.py::test_the_example_says_what_it_shows",
        ),
    ),
    Requirement(
        "mount.pages",
        "a page for each runtime, with the before and after; everything on it is tried",
        ("mounts: examples and pages",),
        (
            "tests/docs/test_examples.py::test_everything_on_the_page_works",
            "tests/docs/test_examples.py::test_a_page_that_is_not_tried_here_is_tried_with_its_runtime",
            "tests/docs/test_examples.py::test_every_mount_has_a_page_with_before_and_after",
            "tests/docs/test_examples.py::test_every_mount_that_the_index_names_can_be_looked_up",
            "tests/docs/test_examples.py::test_a_page_whose_package_is_missing_is_no_success",
            "tests/mounts/test_crewai.py::test_its_page_works",
            "tests/mounts/test_google_adk.py::test_its_page_works",
            "tests/compat/mcp_v1/test_mcp_sdk_v1.py::test_its_page_works",
        ),
    ),
    Requirement(
        "mount.compat",
        "environments that exclude each other are made and run by `make compat`",
        ("mounts: compat",),
        (
            "tests/compat/test_run.py::test_what_an_environment_names_is_not_held_by_the_constraints",
            "tests/compat/test_run.py::test_every_environment_is_found_by_its_requirements",
        ),
    ),
    Requirement(
        "bench.mounts",
        "a mount with everything on adds less than FastMCP's own three middlewares",
        ("mounts: must reach 2",),
        ("measured: benchmarks/mounts.py", "measured: benchmarks/mounts_agents.py"),
    ),
)
"""The router inside agent runtimes."""

REQUIREMENTS: Final[tuple[Requirement, ...]] = (
    *CORE,
    *PROTOCOLS,
    *LAUNCHER,
    *GATE,
    *MOUNTS,
)

GAPS: Final[tuple[Gap, ...]] = (
    Gap(
        "200 slow connections, all closed in time",
        "figures: reliability 8",
        "no front door has connections yet; a frame that does not complete is tested",
    ),
    Gap(
        "another agent's latency under a flood without a newline",
        "figures: reliability 7",
        "a gate has one agent; the flood's memory and the other calls are tested",
    ),
    Gap(
        "a mount adds at most 5 % of a whole agent step, or 50 µs",
        "mounts: must reach 1",
        "with a durable audit it is more: 45 to 53 µs or 9 % on FastMCP, by run (29 µs without it; "
        "benchmarks/mounts.py); 6.4 % on LangChain, where a hook that does nothing has 2.6 %; 16 % "
        "for its sync `invoke`, where two bare changes of thread, without which a tool that hangs "
        "holds its caller, have 6.6 %; 8.5 % for Pydantic AI's capability, where one that does "
        "nothing has 5.2 %; it holds for Pydantic AI's toolset, 3.3 %, and OpenAI Agents, 3.5 % "
        "(benchmarks/mounts_agents.py)",
    ),
    Gap("macOS and Windows", "launcher: other systems", "by construction only; nothing runs there"),
)
"""What is promised and not proved here."""

SOURCES: Final = (
    "design: Vocabulary",
    "design: The life of a call",
    "design: Queueing",
    "design: Nested calls",
    "design: In process",
    "design: Limits",
    "design: The policy file",
    "design: Errors",
    "design: Audit",
    "design: Protocols",
    "design: Launcher",
    "design: Telemetry",
    "design: Command line",
    "design: Python",
    "design: Dependencies",
    "core: house",
    "core: policy",
    "core: limits",
    "core: deadline and cancel",
    "core: audit",
    "core: telemetry",
    "core: python",
    "core: benchmarks",
    "core: must reach 1",
    "core: must reach 2",
    "core: must reach 3",
    "core: must reach 4",
    "core: must reach 5",
    "protocols: codecs",
    "protocols: peers",
    "protocols: callers' side",
    "protocols: reference agent",
    "protocols: must reach 1",
    "protocols: must reach 2",
    "protocols: must reach 3",
    "protocols: must reach 4",
    "protocols: must reach 5",
    "launcher: plan",
    "launcher: limits",
    "launcher: levels",
    "launcher: life",
    "launcher: monitor",
    "launcher: capture",
    "launcher: doctor and exec",
    "launcher: other systems",
    "launcher: must reach 1",
    "launcher: must reach 2",
    "launcher: must reach 3",
    "launcher: must reach 4",
    "gate: front door",
    "gate: zero configuration",
    "gate: demo",
    "gate: newcomers",
    "gate: benchmarks",
    "gate: must reach 1",
    "gate: must reach 2",
    "gate: must reach 3",
    "gate: must reach 4",
    "mounts: runtimes",
    "mounts: names",
    "mounts: idiomatic",
    "mounts: fail closed",
    "mounts: tested",
    "mounts: examples and pages",
    "mounts: compat",
    "mounts: must reach 1",
    "mounts: must reach 2",
    "figures: performance",
    "figures: reliability 1",
    "figures: reliability 2",
    "figures: reliability 3",
    "figures: reliability 4",
    "figures: reliability 5",
    "figures: reliability 6",
    "figures: reliability 7",
    "figures: reliability 8",
    "figures: reliability 9",
    "figures: reliability 10",
    "figures: reliability 11",
    "figures: reliability 12",
    "figures: reliability 13",
    "figures: reliability 15",
    "figures: reliability 16",
    "figures: reliability 20",
)
"""Every part of what was asked for."""
