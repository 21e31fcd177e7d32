"""The HTTP server: probes, metrics, and the REST APIs."""
