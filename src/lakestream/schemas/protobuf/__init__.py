"""Protobuf schemas: .proto text or serialized descriptors, compiled by protoc; compatibility; column types."""
