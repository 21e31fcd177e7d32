from lakestream.data.log.topic_counts import OTHER_TOPICS, TOPICS_MAX, TopicCounts


def test_counter_of_a_deleted_topic_is_dropped() -> None:
    counts = TopicCounts()
    counts.of("one").produced_bytes += 1
    counts.of("two").produced_bytes += 2
    names = {"one": "orders", "two": "payments"}
    by_name = counts.by_name(names.get)
    assert {name: counter.produced_bytes for name, counter in by_name.items()} == {
        "orders": 1,
        "payments": 2,
        OTHER_TOPICS: 0,
    }
    del names["one"]
    assert set(counts.by_name(names.get)) == {"payments", OTHER_TOPICS}
    assert counts.of("one").produced_bytes == 0


def test_topics_share_a_counter_when_there_are_too_many() -> None:
    counts = TopicCounts()
    for number in range(TOPICS_MAX + 10):
        counts.of(str(number)).fetched_bytes += 1
    by_name = counts.by_name(lambda topic_id: f"t{topic_id}")
    assert len(by_name) == TOPICS_MAX + 1
    assert by_name[OTHER_TOPICS].fetched_bytes == 10
    counts.by_name(lambda topic_id: None if topic_id == "0" else topic_id)
    counts.of("new").fetched_bytes += 1
    assert by_name[OTHER_TOPICS].fetched_bytes == 10
