"""Protobuf: files of .proto text or serialized descriptors, compiled by the reference compiler."""
