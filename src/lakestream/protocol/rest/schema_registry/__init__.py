"""The schema registry API, compatible with Confluent's."""
