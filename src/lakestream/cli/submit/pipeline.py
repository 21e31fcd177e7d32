"""Script for `spark-submit`: runs `lakestream pipeline` on the Spark that spark-submit has started.

    spark-submit --master spark://host:7077 …/lakestream/cli/submit/pipeline.py --metadata oxia://… --storage s3://…

It is in its own folder because Spark puts the script's folder first in the module search path, on every machine.
"""

import sys

from lakestream.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["pipeline", *sys.argv[1:]]))
