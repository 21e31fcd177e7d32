"""State that brokers share: topics, brokers, groups, transactions and schemas, and the tasks that maintain it."""
