from math import inf

from lakestream.cli.cluster.metrics_page import samples_of, states_of
from lakestream.protocol.rest import prometheus
from lakestream.protocol.rest.prometheus import Reading, reading


def page(*readings: Reading) -> str:
    return prometheus.text(("0", one) for one in readings).decode()


def test_states_have_lag_and_age_of_the_last_status() -> None:
    found = states_of(
        samples_of(
            page(
                reading(prometheus.TABLE_LAG_RECORDS, 3, "orders"),
                reading(prometheus.TABLE_LAG, 1.5, "orders"),
                reading(prometheus.PIPELINE_STATUS_AGE, 4.0),
            )
        )
    )
    assert (found.lag_records, found.lag_s, found.status_age_s) == ({"orders": 3}, {"orders": 1.5}, 4.0)
    assert found.problems == found.notes == []


def test_states_have_problems_and_notes_with_their_reasons() -> None:
    found = states_of(
        samples_of(
            page(
                reading(prometheus.TABLE_ERROR, 1, "orders", 'its file "a" is damaged'),
                reading(prometheus.TABLE_CONVERSION_ERROR, 1, "orders", "no column fits \x1b[2J"),
                reading(prometheus.PIPELINE_STATUS_AGE, 4.0),
            )
        )
    )
    assert found.problems == ['table of orders: its file "a" is damaged']
    (note,) = found.notes
    assert note.startswith("topic orders has dead letters (no column fits ")
    assert "\x1b" not in note


def test_a_pipeline_that_does_not_run_is_a_problem_only_if_records_wait() -> None:
    age = reading(prometheus.PIPELINE_STATUS_AGE, inf)
    assert states_of(samples_of(page(age))).problems == []
    (problem,) = states_of(samples_of(page(age, reading(prometheus.TABLE_LAG_RECORDS, 1, "orders")))).problems
    assert problem.startswith("no pipeline has run yet, and 1 record wait")
