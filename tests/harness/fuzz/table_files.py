"""Files that clients name in requests: metadata files, manifest lists and manifests, valid and damaged."""

import gzip
import random
import shutil
from pathlib import Path
from typing import Final

from tests.harness.fuzz.mutations import damaged_avro, damaged_bytes, mutated, to_json

from lakestream.catalog.manifests.data_file import FileDescription
from lakestream.catalog.manifests.manifest import EntryWriter, ManifestFile, ManifestLayout, write_list
from lakestream.catalog.table_metadata.json_model import Json, schema_of, spec_of
from lakestream.catalog.topic_table.checks import layout_of
from lakestream.catalog.topic_table.columns import OFFSET_ID, PARTITION_ID
from lakestream.catalog.topic_table.offsets import TOPIC_ID

NAMES_MAX: Final = 100
"""Files of one kind in a table's folder; later ones replace earlier ones."""


class TableFiles:
    """Writes files into the storage root, which is a folder of this machine."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self._root = root
        self._rng = rng
        self._count = 0

    def write(self, location: str, body: bytes) -> None:
        path = Path(location.removeprefix("file://"))
        assert path.is_relative_to(self._root), path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    def remove(self, location: str) -> None:
        shutil.rmtree(location.removeprefix("file://"), ignore_errors=True)

    def snapshot_list(self, metadata: Json, snapshot: Json) -> str:
        """Writes the manifest list of a new snapshot, with one manifest, and returns its location."""
        self._count += 1
        folder = f"{metadata['location']}/metadata"
        name = self._count % NAMES_MAX
        manifest_path, list_path = f"{folder}/m{name}.avro", f"{folder}/l{name}.avro"
        manifest = manifest_of(metadata, snapshot["snapshot-id"])
        numbers = {"first-row-id": 0, **snapshot}
        length = len(manifest)
        listed = write_list([_entry(manifest_path, length, metadata, snapshot)], numbers, metadata["format-version"])
        kind = self._rng.randrange(5)
        self.write(manifest_path, damaged_avro(manifest, self._rng) if kind in (1, 2) else manifest)
        self.write(list_path, damaged_avro(listed, self._rng) if kind == 3 else listed)
        return list_path

    def metadata_file(self, metadata: Json, location: str) -> str:
        """Writes a metadata file of a table at `location`, mostly damaged, and returns its own location."""
        table = {**metadata, "location": location, "snapshots": [], "refs": {}, "current-snapshot-id": -1}
        table = mutated(table, self._rng, self._rng.choice((0, 0, 1, 1, 2)))
        packed = self._rng.random() < 0.3
        body = to_json(table)
        if packed:
            body = gzip.compress(body, 1)
        if self._rng.random() < 0.05:
            body = damaged_bytes(body, self._rng)
        file = f"{location}/metadata/00000-a{'.gz' if packed else ''}.metadata.json"
        self.write(file, body)
        return file


def manifest_of(metadata: Json, snapshot_id: int) -> bytes:
    """Returns a manifest with one file. It is not written: only its entry is read."""
    if metadata["properties"].get(TOPIC_ID):
        layout = layout_of(metadata)
    else:
        unpartitioned: Json = {"spec-id": metadata["default-spec-id"], "fields": []}
        layout = ManifestLayout(metadata["format-version"], schema_of(metadata), unpartitioned, (), None)
    file = FileDescription(
        location=f"{metadata['location']}/data/a.parquet",
        partition=0,
        offset_first=0,
        offset_last=9,
        record_count=10,
        size=1_000,
        column_sizes={1: 900},
        value_counts={1: 10, OFFSET_ID: 10},
        null_counts={1: 0, OFFSET_ID: 0},
        lower_bounds={PARTITION_ID: bytes(4), OFFSET_ID: bytes(8)},
        upper_bounds={PARTITION_ID: bytes(4), OFFSET_ID: (9).to_bytes(8, "little")},
        split_offsets=(4,),
    )
    writer = EntryWriter(layout)
    return writer.manifest([writer.added(file, snapshot_id)])


def _entry(path: str, length: int, metadata: Json, snapshot: Json) -> ManifestFile:
    return ManifestFile(
        manifest_path=path,
        manifest_length=length,
        partition_spec_id=spec_of(metadata)["spec-id"],
        sequence_number=snapshot["sequence-number"],
        min_sequence_number=snapshot["sequence-number"],
        added_snapshot_id=snapshot["snapshot-id"],
        added_files_count=1,
        added_rows_count=10,
    )
