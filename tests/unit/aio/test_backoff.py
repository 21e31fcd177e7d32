from lakestream.aio.backoff import Backoff


def test_pause_doubles_up_to_the_maximum() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.failed() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_pause_starts_again_after_a_reset() -> None:
    backoff = Backoff(0.5, 3.0)
    assert backoff.pause_s == 0.0
    backoff.failed()
    assert backoff.failed() == backoff.pause_s == 1.0
    backoff.reset()
    assert backoff.pause_s == 0.0
    assert backoff.failed() == 0.5


def test_pause_starts_again_after_a_steady_run() -> None:
    backoff = Backoff(0.5, 3.0, steady_s=60.0)
    assert [backoff.failed(ran_s) for ran_s in (0.0, 59.9, 60.0, 1.0)] == [0.5, 1.0, 0.5, 1.0]
