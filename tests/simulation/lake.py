"""Who works at tables in a run: drivers of the pipeline, and foreign engines."""

from tests.simulation.foreign import Engine
from tests.simulation.pipeline import Pipeline
from tests.simulation.world import World


def start_pipelines(world: World) -> None:
    for place in range(world.mood.pipelines):
        world.start(world.pipelines, place, "pipeline", lambda host: Pipeline(world, host).run())
    for place in range(world.mood.engines):
        world.start(world.engines, place, "engine", lambda host: Engine(world, host).run())
