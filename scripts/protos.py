"""Generates the protobuf modules, which are committed next to their .proto files. Run it after they change."""

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
PROTOS = ["lakestream/metadata/oxia/proto/oxia.proto"]


def main() -> int:
    outputs = [f"-I{SOURCE}", f"--python_out={SOURCE}", f"--pyi_out={SOURCE}"]
    return subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *outputs, *PROTOS], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
