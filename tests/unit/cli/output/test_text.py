from lakestream.cli.output.text import escaped, human_size, human_time


def test_sizes_and_times_are_formatted_with_units() -> None:
    assert [human_size(size) for size in (0, 1023, 1024, 1536, 2**20, 3 * 2**30, 2**50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "1.0 MiB",
        "3.0 GiB",
        "1024.0 TiB",
    ]
    assert human_time(0) == "1970-01-01 00:00:00.000 UTC"
    assert human_time(-1) == "1969-12-31 23:59:59.999 UTC"
    assert human_time(-(2**63)) == f"{-(2**63)} ms"


def test_control_characters_are_escaped_as_in_json() -> None:
    assert escaped("plain ü") == "plain ü"
    assert escaped("\x1b[2J\x9b\u202e\t\U000e0001") == "\\u001b[2J\\u009b\\u202e\t\\udb40\\udc01"
