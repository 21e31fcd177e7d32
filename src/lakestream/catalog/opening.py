"""A catalog over the stores of this process."""

import os

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.client_settings import azure_account
from lakestream.catalog.locations import Locations
from lakestream.clock import Clock, Ids
from lakestream.metadata.store import MetadataStore
from lakestream.storage.object_store import ObjectStore


def open_catalog(store: MetadataStore, objects: ObjectStore, storage_url: str, clock: Clock, ids: Ids) -> Catalog:
    """`storage_url` is that of `objects`: what tables write into their metadata starts with it."""
    return Catalog(store, objects, Locations(storage_url, azure_account(os.environ)), clock, ids)
