"""Network protocols: Kafka, and the HTTP APIs."""
