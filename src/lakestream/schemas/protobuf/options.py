"""Options of a schema, also those that it or its references declare."""

from google.protobuf import message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message


def understood(options: Message, pool: DescriptorPool) -> Message:
    """Read with the pool's own description of options, which knows the extensions that the schema has."""
    try:
        kind = pool.FindMessageTypeByName(options.DESCRIPTOR.full_name)
    except KeyError:
        return options  # Nothing in the pool imports it, so nothing declares an option.
    return message_factory.GetMessageClass(kind).FromString(options.SerializeToString(deterministic=True))
