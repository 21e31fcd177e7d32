"""The Protobuf codec."""
