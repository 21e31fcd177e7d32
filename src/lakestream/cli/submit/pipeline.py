"""What `spark-submit` is given: the command `lakestream pipeline`, on the Spark that spark-submit has started.

    spark-submit --master spark://host:7077 …/lakestream/cli/submit/pipeline.py --metadata oxia://… --storage s3://…

In a folder of its own: Spark puts that folder in front of where modules are looked for, on every machine.
"""

import sys

from lakestream.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["pipeline", *sys.argv[1:]]))
